"""The closed lists of a graph: kinds of node and edge, scopes of what-ifs, causes of time."""

from __future__ import annotations

from enum import IntEnum


class NodeKind(IntEnum):
    """What a node is."""

    HOST = 0
    LAUNCH = 1
    SYNC = 2
    ALLOCATOR = 3
    WAIT = 4
    """The host's return from something it waited for, what a launch call does after its kernel
    began, or (on any resource) a measured wait whose reason was not recorded."""
    MARK = 5
    """A step boundary, or the meeting of a collective's ranks; takes no time."""
    KERNEL = 6
    COPY = 7
    COLLECTIVE = 8
    OFFLOAD = 9
    """Work on rows outside the device: in host memory, on a drive, in an adapter."""


DEVICE_KINDS = (NodeKind.KERNEL, NodeKind.COPY, NodeKind.COLLECTIVE)


class EdgeKind(IntEnum):
    """Why a node cannot start before another has ended."""

    PROGRAM = 0
    LAUNCH = 1
    LAUNCH_COPY = 2
    LAUNCH_COLLECTIVE = 3
    STREAM = 4
    STREAM_COPY = 5
    STREAM_COLLECTIVE = 6
    EVENT_WAIT = 7
    SM_OCCUPANCY = 8
    HOST_SYNC = 9
    BLOCKING_COPY = 10
    HIDDEN_SYNC = 11
    ALLOCATOR = 12
    HAND_OVER = 13
    HAND_BACK = 14
    LAUNCH_QUEUE = 15
    RENDEZVOUS = 16
    EVENT_WAIT_COLLECTIVE = 17
    HOST_COLLECTIVE = 18
    """A collective on a host thread (Gloo) behind the operator that issued it."""
    STREAM_OVERLAP = 19
    """Operations of one stream that ran at the same time when measured: branches of one graph
    launch, or timestamps that are off. The later one starts after the same share of the earlier."""
    STREAM_GRAPH = 20
    """Operations of one graph launch on one stream: the device takes the next at once."""


LAUNCH_KINDS = (EdgeKind.LAUNCH, EdgeKind.LAUNCH_COPY, EdgeKind.LAUNCH_COLLECTIVE)
STREAM_KINDS = (
    EdgeKind.STREAM,
    EdgeKind.STREAM_COPY,
    EdgeKind.STREAM_COLLECTIVE,
    EdgeKind.STREAM_GRAPH,
)
HANDED = (EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE)
"""By which streams wait for one another."""


class Cause(IntEnum):
    """What a stretch of time is due to: the closed list of idle causes, and work on the device."""

    HOST_T1 = 0
    HOST_T2 = 1
    HOST_T3 = 2
    HOST_T4 = 3
    HOST_T5 = 4
    HOST_OP_WITHOUT_LAUNCH = 5
    LAUNCH_LATENCY = 6
    BLOCKING_CALL = 7
    HIDDEN_SYNC = 8
    ALLOCATOR = 9
    LAUNCH_QUEUE_FULL = 10
    OTHER_STREAM = 11
    SM_OCCUPANCY = 12
    COLLECTIVE_WAIT = 13
    DATA_LOADING = 14
    BEFORE_WINDOW = 15
    RECORDING_MISSING = 16
    END_OF_STEP = 17
    UNEXPLAINED = 18
    COMPUTE = 19
    COMMUNICATION = 20
    MEMCPY = 21
    WAITING_FOR_INPUT = 22


IN_OPERATOR = (Cause.HOST_T2, Cause.HOST_T3, Cause.HOST_T5, Cause.HOST_OP_WITHOUT_LAUNCH)
"""Host time that an operator was recorded for."""
NOT_EXPLAINED = (Cause.UNEXPLAINED, Cause.RECORDING_MISSING)
"""Time whose reason the recording does not show."""

CAUSE_OF_EDGE: dict[EdgeKind, Cause] = {
    EdgeKind.PROGRAM: Cause.UNEXPLAINED,
    **dict.fromkeys((*LAUNCH_KINDS, *STREAM_KINDS), Cause.LAUNCH_LATENCY),
    EdgeKind.STREAM_OVERLAP: Cause.LAUNCH_LATENCY,
    **dict.fromkeys(HANDED, Cause.OTHER_STREAM),
    EdgeKind.SM_OCCUPANCY: Cause.SM_OCCUPANCY,
    EdgeKind.HOST_SYNC: Cause.BLOCKING_CALL,
    EdgeKind.BLOCKING_COPY: Cause.BLOCKING_CALL,
    EdgeKind.HIDDEN_SYNC: Cause.HIDDEN_SYNC,
    EdgeKind.ALLOCATOR: Cause.ALLOCATOR,
    EdgeKind.HAND_OVER: Cause.HOST_T1,
    EdgeKind.HAND_BACK: Cause.HOST_T1,
    EdgeKind.HOST_COLLECTIVE: Cause.HOST_OP_WITHOUT_LAUNCH,
    EdgeKind.LAUNCH_QUEUE: Cause.LAUNCH_QUEUE_FULL,
    EdgeKind.RENDEZVOUS: Cause.COLLECTIVE_WAIT,
}
"""Where a critical path crosses an edge, the time between its ends is due to this."""
CAUSE_ON_THREAD = {
    NodeKind.SYNC: Cause.BLOCKING_CALL,
    NodeKind.WAIT: Cause.BLOCKING_CALL,
    NodeKind.ALLOCATOR: Cause.ALLOCATOR,
    NodeKind.LAUNCH: Cause.LAUNCH_QUEUE_FULL,
}
"""What a host node waited for where nothing that was recorded held it back."""
PLAUSIBLE_LAG_US = dict.fromkeys(EdgeKind, (-20.0, 200.0)) | {
    **dict.fromkeys(LAUNCH_KINDS, (-100.0, 100.0)),
    **dict.fromkeys(STREAM_KINDS, (-3.0, 20.0)),
    EdgeKind.SM_OCCUPANCY: (-200.0, 20.0),
    EdgeKind.HOST_COLLECTIVE: (0.0, 2000.0),
}
"""What can be the doing of an edge of each kind; later starts have a reason that is not seen."""


class Scope(IntEnum):
    """What a what-if can scale. Waits belong to none: they follow."""

    NONE = 0
    COMPUTE = 1
    COMM = 2
    MEMCPY = 3
    HOST = 4
    ALLOCATOR = 5
    UNEXPLAINED = 6
    """Measured waits whose reason was not recorded."""
    INPUT = 7
    """Waiting for requests and other input from outside the process."""


SCOPES: dict[str, tuple[Scope, ...]] = {
    "gpu": (Scope.COMPUTE, Scope.COMM, Scope.MEMCPY),
    "compute": (Scope.COMPUTE,),
    "comm": (Scope.COMM,),
    "memcpy": (Scope.MEMCPY,),
    "host": (Scope.HOST,),
    "allocator": (Scope.ALLOCATOR,),
    "unexplained": (Scope.UNEXPLAINED,),
    "input": (Scope.INPUT,),
}
