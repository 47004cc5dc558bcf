"""The nodes of one rank: host pieces, returns from waits, device operations."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.host import ALLOCATOR, ELAPSED, LAUNCH, PIECE, SYNC, Pieces
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.lags import PLAUSIBLE_US
from perfmodel.graph.threads import Waits
from perfmodel.graph.types import Nodes
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, Ints, Mask, RankTrace
from perfmodel.trace.link import Links, runs, stream_keys

_KIND_OF_CALL = {
    PIECE: NodeKind.HOST,
    LAUNCH: NodeKind.LAUNCH,
    SYNC: NodeKind.SYNC,
    ALLOCATOR: NodeKind.ALLOCATOR,
    ELAPSED: NodeKind.HOST,
}
_OF_DEVICE_KIND = (
    (NodeKind.KERNEL, Scope.COMPUTE, Cause.COMPUTE),
    (NodeKind.COLLECTIVE, Scope.COMM, Cause.COMMUNICATION),
    (NodeKind.COPY, Scope.MEMCPY, Cause.MEMCPY),
)
_CAUSE_OF_CALL = {SYNC: Cause.BLOCKING_CALL, ALLOCATOR: Cause.ALLOCATOR}


def rank_nodes(
    rank: RankTrace,
    links: Links,
    pieces: Pieces,
    waits: Waits,
    returns: list[int],
    is_collective: Mask,
) -> tuple[Nodes, tuple[str, ...]]:
    """Nodes in the order pieces, returns (of the pieces in `returns`), device operations; and the
    names of the resources they are bound to."""
    count, devices = len(pieces.thread), links.device_rows
    threads = list(links.roles)
    streams, stream_of = np.unique(stream_keys(rank, devices), return_inverse=True)
    resources = tuple(f"{rank.rank}/{links.roles[t]}" for t in threads) + tuple(
        f"{rank.rank}/gpu{key >> 32}/stream{key & 0xFFFFFFFF}" for key in streams.tolist()
    )
    host_resource = np.zeros(count, np.int32)
    for low, high in runs(pieces.thread):
        host_resource[low:high] = threads.index(int(pieces.thread[low]))
    call_cause = np.array([_CAUSE_OF_CALL.get(c, NONE) for c in _KIND_OF_CALL])[pieces.call]
    host_cause = np.where(call_cause >= 0, call_cause, waits.cause)
    host_kind = np.array(list(_KIND_OF_CALL.values()))[pieces.call]
    is_host_collective = waits.cause == Cause.COMMUNICATION
    host_kind = np.where(is_host_collective, NodeKind.COLLECTIVE, host_kind)
    host_scope = np.select(
        [
            pieces.call == ALLOCATOR,
            is_host_collective,
            waits.cause == Cause.WAITING_FOR_INPUT,
        ],
        [Scope.ALLOCATOR, Scope.COMM, Scope.INPUT],
        Scope.HOST,
    )
    release = np.full(count, -np.inf)
    for low, _ in runs(pieces.thread):
        if low not in waits.woken and low + 1 not in waits.woken:
            release[low] = waits.start_us[low]
    back = [waits.returns[p] for p in returns]
    at = np.array(returns, np.int64)
    category = rank.category[devices]
    device_kind = np.select(
        [is_collective, category == Category.KERNEL],
        [NodeKind.COLLECTIVE, NodeKind.KERNEL],
        NodeKind.COPY,
    )
    scope_of, cause_of = np.zeros(len(NodeKind), np.int64), np.zeros(len(NodeKind), np.int64)
    for kind, scope, cause in _OF_DEVICE_KIND:
        scope_of[kind], cause_of[kind] = scope, cause
    pinned = (links.device_launch < 0) & ~_follows_closely(rank, links)

    def stack(*columns: object, dtype: type) -> np.ndarray:
        return np.concatenate([np.asarray(c, dtype) for c in columns])

    nodes = Nodes(
        kind=stack(host_kind, [NodeKind.WAIT] * len(at), device_kind, dtype=np.int8),
        cause=stack(host_cause, [c for _, _, c in back], cause_of[device_kind], dtype=np.int8),
        scope=stack(
            host_scope,
            [Scope.HOST if d else Scope.NONE for _, d, _ in back],
            scope_of[device_kind],
            dtype=np.int8,
        ),
        rank=np.full(count + len(at) + len(devices), rank.rank, np.int32),
        resource=stack(host_resource, host_resource[at], stream_of + len(threads), dtype=np.int32),
        row=stack(pieces.row, pieces.row[at], devices, dtype=np.int32),
        start_us=stack(
            waits.start_us, [s for s, _, _ in back], rank.start_us[devices], dtype=float
        ),
        duration_us=stack(
            waits.duration_us, [d for _, d, _ in back], rank.duration_us[devices], dtype=float
        ),
        release_us=stack(
            release,
            np.full(len(at), -np.inf),
            np.where(pinned, rank.start_us[devices], -np.inf),
            dtype=float,
        ),
    )
    return nodes, resources


def _follows_closely(rank: RankTrace, links: Links) -> Mask:
    """Device operations that began right after the one before them on their stream."""
    previous, following = stream_neighbours(rank, links)
    close = np.zeros(len(links.device_rows), bool)
    gap = rank.start_us[links.device_rows[following]] - rank.end_us[links.device_rows[previous]]
    close[following] = gap <= PLAUSIBLE_US[EdgeKind.STREAM][1]
    return close


def stream_neighbours(rank: RankTrace, links: Links) -> tuple[Ints, Ints]:
    """Positions in `device_rows` of each operation that has one before it on its stream."""
    rows = links.device_rows
    stream = stream_keys(rank, rows)
    order = np.argsort(stream, kind="stable")
    same = np.flatnonzero(stream[order][1:] == stream[order][:-1])
    return order[same], order[same + 1]
