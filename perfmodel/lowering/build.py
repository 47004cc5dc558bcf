"""Lowered ops on a GPU to an execution graph: host overheads, launches, streams, waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from perfmodel.base.arrays import Floats
from perfmodel.lowering import recorded
from perfmodel.lowering.arguments import OWN_STREAM, STREAM
from perfmodel.lowering.draft import (
    CAUSES,
    COPY_STREAM,
    DISTRIBUTE,
    DISTRIBUTION_STREAM,
    KINDS,
    Built,
    Draft,
    captured,
)
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import ENGINE, OP_WITHOUT_LAUNCH, T1, T2, T3, T4, T5
from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.observed import HostTimes
from perfmodel.lowering.piece import OF_PROFILE
from perfmodel.ops.graph import BACK_TO_BACK, DEVICE_WIDE, HOST_US, TRITON, Op
from perfmodel.ops.vocabulary.streaming import RECORDED
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.trace.categories import DATA_LOADING_NAME
from perfmodel.trace.columns import NONE
from perfmodel.trace.window import MAIN_THREAD

GROUP, MEMBERS = "process_group", "group_ranks"
ADDRESSES = 1 << 20
"""Numbers of process groups from here on are where one lies in memory."""
CALL = {"kernel": "cudaLaunchKernel", "copy": "cudaMemcpyAsync", "collective": "cudaLaunchKernel"}
REPLAY = "cudaGraphLaunch"
_GPU = "gpu0/"
WAITED = "waited, as recorded"
_ISSUING = "gpu0/compute"
"""The stream that a collective is issued on where its thread launched no kernel yet."""


class _GraphBuilder:
    """One rank's host, op by op: where its threads and streams stand."""

    def __init__(
        self,
        lowered: Lowered,
        duration_us: Floats,
        times: HostTimes | None,
        host_ratio: float,
        graphs: Mapping[int, bool],
        engine: Mapping[str, str],
    ) -> None:
        self.graphs, self.lowered, self.duration_us = graphs, lowered, duration_us.tolist()
        self.host_ratio, self.times, self.engine = host_ratio, times, engine
        rows = {op.event for op in lowered.graph.ops}
        given = times.stretches if times else ()
        self.stretches = deque(each for each in given if each.is_left(rows))
        """Those that have not been reached."""
        self.draft = Draft(lowered.graph.rank)
        self.host: int | None = None
        """The last node of whichever thread ran last: one hands over to the next."""
        self.ended: int | None = None
        """The mark at the end of the last step, which the host does not wait for."""
        self.thread = "main"
        self.last: dict[str, int] = {}
        self.of_op: dict[int, int] = {}
        """Per op, the last operation on a device that it started."""
        self.needs = lowered.waits_for
        self.groups: dict[str, str] = {}
        """Process groups that are called by an address, in order of use."""
        self.issuing: dict[str, str] = {}
        self.communicating: set[str] = set()

    def step(self, name: int, tops: list[int], pieces: list[list[int]]) -> tuple[int, int]:
        """All ops of a step; returns its marks: where the one before ended, and where it does."""
        start = self.ended
        if start is None:
            start = self.host = self._mark(f"step {name}")
        for top, own in zip(tops, pieces, strict=True):
            self._op(top, own)
        self._until(name + 1, 0)
        self._hand_over(MAIN_THREAD)
        self.ended = self._mark(f"end of step {name}")
        for operation in self.last.values():
            self.draft.edge(operation, self.ended, EdgeKind.HOST_SYNC)
        return start, self.ended

    def _mark(self, label: str) -> int:
        node = self.draft.add(NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE, self.thread, label)
        self.draft.edge(self.host, node, EdgeKind.PROGRAM)
        return node

    def _op(self, top: int, own: list[int]) -> None:
        op = self.lowered.graph.ops[top]
        launching = [p for p in own if self.lowered.pieces[p].kind != "host"]
        if top in self.graphs:
            self._captured(op, launching, begins=self.graphs[top])
            return
        thread = op.thread
        self._hand_over(thread)
        if op.event >= 0:  # the host's time before it was measured
            self._until(op.step, op.event)
        if self.times is None or thread != MAIN_THREAD or op.event < 0:
            self._host_of(T1, op)
        if recorded.STAND_IN in op.attributes:
            if recorded.CALL in op.attributes:  # a launch call outside of all ops
                call = self._recorded_call(op.attributes, thread)
                self._started(launching, call, 1, thread)
                if rest_us := float(op.attributes[recorded.REST_US]):
                    work = Cause.HOST_T4, thread, op.name
                    self._taking(NodeKind.HOST, *work, rest_us, op.event)
            else:  # work whose launch call is not recorded
                for piece in launching:
                    self._operation(piece, self.host)
        elif HOST_US in op.attributes:
            work = Cause.HOST_OP_WITHOUT_LAUNCH, thread, op.name
            taken_us = float(op.attributes[HOST_US]) * self.host_ratio
            self._taking(NodeKind.HOST, *work, taken_us, NONE)
        elif not launching:
            self._host_of(OP_WITHOUT_LAUNCH, op)
        else:
            self._launched(op, launching)
        if held_us := float(op.attributes.get(recorded.HELD_US, 0.0)):
            about = NodeKind.WAIT, Cause.UNEXPLAINED, Scope.NONE, thread, WAITED, held_us
            self._next(self.draft.add(*about), thread)
        if DEVICE_WIDE.items() <= op.attributes.items():
            last = (operation for at, operation in self.last.items() if at.startswith(_GPU))
            self._wait(thread, "the device", self.host, last, EdgeKind.HOST_SYNC)

    def _captured(self, op: Op, pieces: list[int], *, begins: bool) -> None:
        """An op in a CUDA graph, which is launched with the op that it begins with."""
        launch = None
        self._until(op.step, op.event, captured=not begins)
        if begins:
            if self.times is None or op.event < 0:
                self._host(T1, REPLAY, MAIN_THREAD)
            launch = self._host(T4, REPLAY, MAIN_THREAD, NodeKind.LAUNCH)
        for number, piece in enumerate(pieces):
            self._operation(piece, launch, in_graph=number > 0 or not begins)

    def _hand_over(self, thread: str) -> None:
        """The engine's thread wakes up for the backward pass, or the one that waits for it."""
        if self.times is None and {thread, self.thread} == self.engine.keys():
            self._host(T1, self.engine[thread], thread)

    def _until(self, step: int, row: int, *, captured: bool = False) -> None:
        """What was measured up to `row` of `step`; nothing is between ops that are captured."""
        while self.stretches and (self.stretches[0].step, self.stretches[0].row) <= (step, row):
            stretch = self.stretches.popleft()
            if not captured or stretch.is_left(()):
                work = stretch.cause, MAIN_THREAD, stretch.label, stretch.duration_us, stretch.row
                self._taking(NodeKind.HOST, *work)

    def _taking(
        self, kind: NodeKind, cause: Cause, thread: str, label: str, taken_us: float, row: int
    ) -> int:
        """Host work that takes as long as the trace's host took, on this one."""
        ratio = self.times.ratio if self.times else 1.0
        node = self.draft.add(kind, cause, Scope.HOST, thread, label, taken_us * ratio, row=row)
        self._next(node, thread)
        return node

    def _recorded_call(self, about: Mapping[str, str], thread: str) -> int:
        """A launch call that takes as long as it took."""
        name, row = about[recorded.CALL], int(about[recorded.LAUNCH])
        taken_us = float(about[recorded.CALL_US])
        return self._taking(NodeKind.LAUNCH, Cause.HOST_T4, thread, name, taken_us, row)

    def _launched(self, op: Op, launching: list[int]) -> None:
        self._host_of(T2, op)
        for number, (pieces, times) in enumerate(self._calls(launching)):
            about = self.lowered.graph.ops[int(self.lowered.owner[pieces[0]])].attributes
            if number and BACK_TO_BACK not in about:
                self._host_of(T5, op)
            self._launch(pieces, times, op.thread)
        self._host_of(T3, op)

    def _calls(self, pieces: list[int]) -> Iterator[tuple[list[int], int]]:
        """(pieces, number of launches of each); of what was recorded, whatever one call had
        started."""
        owner, ops = self.lowered.owner, self.lowered.graph.ops
        for call, group in groupby(pieces, lambda p: ops[owner[p]].attributes.get(recorded.LAUNCH)):
            if call is not None:
                yield list(group), 1
                continue
            for piece in group:
                for _ in range(self.lowered.pieces[piece].launches):
                    yield [piece], self.lowered.pieces[piece].launches

    def _host_of(self, kind: str, op: Op) -> None:
        """A stretch of an op's host time; data loading was measured as a whole."""
        is_measured = self.times is not None and op.thread == MAIN_THREAD
        annotation = op.attributes.get("annotation", "")
        if not (is_measured and DATA_LOADING_NAME.search(annotation)):
            self._host(kind, op.name, op.thread)

    def _host(self, kind: str, op: str, thread: str, of: NodeKind = NodeKind.HOST) -> int:
        """A stretch of host time or a launch call that a profile knows; threads take turns."""
        node = self.draft.add(of, CAUSES[kind], Scope.HOST, thread, op)
        self.draft.overhead.append((node, kind, op, thread))
        self._next(node, thread)
        return node

    def _next(self, node: int, thread: str) -> None:
        """The host goes on with `node`."""
        same = thread == self.thread
        self.draft.edge(self.host, node, EdgeKind.PROGRAM if same else EdgeKind.HAND_OVER)
        self.host, self.thread = node, thread

    def _wait(
        self, thread: str, what: str, before: int | None, operations: Iterable[int], kind: EdgeKind
    ) -> None:
        """The host waits for operations, behind `before`."""
        label = f"wait for {what}"
        wait = self.draft.add(NodeKind.SYNC, Cause.BLOCKING_CALL, Scope.NONE, thread, label)
        self.draft.edge(before, wait, EdgeKind.PROGRAM)
        for operation in operations:
            self.draft.edge(operation, wait, kind)
        self.host = wait

    def _launch(self, pieces: list[int], times: int, thread: str) -> None:
        piece = self.lowered.pieces[pieces[0]]
        if piece.kind == "offload":  # on a resource of its own: handed over, or done by the thread
            operation = self._operation(pieces[0], self.host)
            if piece.blocks:
                self._wait(thread, piece.op, self.host, (operation,), EdgeKind.PROGRAM)
            return
        about = self.lowered.graph.ops[int(self.lowered.owner[pieces[0]])].attributes
        if recorded.CALL in about:
            node = self._recorded_call(about, thread)
        else:
            node = self._host(T4, CALL[piece.kind], thread, NodeKind.LAUNCH)
        self._started(pieces, node, times, thread)

    def _started(self, pieces: list[int], launch: int, times: int, thread: str) -> None:
        """What a launch call starts, and the host's wait for it, if it waits."""
        started = [(self._operation(p, launch, times), self.lowered.pieces[p]) for p in pieces]
        waited = [operation for operation, piece in started if piece.blocks]
        if waited:
            self._wait(thread, "the copy", launch, waited, EdgeKind.BLOCKING_COPY)

    def _operation(
        self, piece: int, launch: int | None, times: int = 1, *, in_graph: bool = False
    ) -> int:
        """A kernel, copy or collective on its stream; `in_graph`: behind others of one launch."""
        work = self.lowered.pieces[piece]
        kind, cause, scope, launched, behind = KINDS[work.kind]
        owner = int(self.lowered.owner[piece])
        op = self.lowered.graph.ops[owner]
        pipeline = op.attributes.get(OWN_STREAM)  # has its own for all but collectives
        usual = COPY_STREAM if pipeline and work.kind == "copy" else str(work.stream)
        if pipeline == DISTRIBUTE and work.kind != "collective":
            usual = DISTRIBUTION_STREAM
        stream = op.attributes.get(STREAM) or usual
        stream = stream if work.kind == "offload" else f"{_GPU}{stream}"
        is_own = work.op == RECORDED or op.name.startswith(TRITON)
        label = op.name.removeprefix(OF_PROFILE) if is_own else work.op
        node = self.draft.add(
            kind, cause, scope, stream, label, self.duration_us[piece] / times, piece
        )
        begun = node
        waited_us = float(op.attributes.get(recorded.WAITED_US, 0.0))
        if waited_us and owner not in self.of_op:  # for what is not known when it was recorded
            about = NodeKind.WAIT, Cause.UNEXPLAINED, Scope.NONE, stream, WAITED, waited_us
            begun = self.draft.add(*about, row=op.event)
            self.draft.edge(begun, node, EdgeKind.PROGRAM)
        self.draft.edge(launch, begun, launched)
        follows = EdgeKind.STREAM_GRAPH if in_graph else behind
        self.draft.edge(self.last.get(stream), begun, follows)
        for producer in self._producers(owner, stream, work.kind):
            self.draft.edge(producer, begun, EdgeKind.EVENT_WAIT)
        self.last[stream] = self.of_op[owner] = node
        if work.kind == "collective":
            self.communicating.add(stream)
            self.draft.process_groups[node] = self._group(op.attributes)
        if work.kind == "kernel":
            self.issuing[op.thread] = stream
        return node

    def _group(self, about: Mapping[str, str]) -> str:
        """What all ranks call a collective's group: its members, else its name; of a name that is
        an address in this process, which it is among the rank's groups."""
        name = about.get(MEMBERS) or about.get(GROUP, "")
        if name.isdecimal() and int(name) >= ADDRESSES:
            name = self.groups.setdefault(name, f"group {len(self.groups)}")
        return name

    def _producers(self, owner: int, stream: str, kind: str) -> Iterator[int]:
        """Operations on other streams whose results the op `owner` reads or that it waits for.

        A collective waits for all that the stream it was issued on was given before it; where that
        is not known, for all kernels, but not for a pipeline's copies or other process groups.
        Where nothing is known, everything waits for all streams, but for a pipeline's copies.
        """
        if self.needs is None:
            if not stream.endswith(COPY_STREAM):
                yield from (node for name, node in self.last.items() if name != stream)
            return
        own = self.draft.resource_of(stream)
        if kind == "collective" and self.lowered.graph.waits is None:
            apart = {stream, f"gpu0/{COPY_STREAM}", *self.communicating}
            yield from (node for name, node in self.last.items() if name not in apart)
        elif kind == "collective":
            issuing = self.issuing.get(self.lowered.graph.ops[owner].thread, _ISSUING)
            if issuing != stream and issuing in self.last:
                yield self.last[issuing]
        for producer in self.needs.get(owner, ()):
            node = self.of_op.get(producer)
            if node is not None and self.draft.nodes[node].resource != own:
                yield node


def execution_graph(
    lowered: Lowered,
    duration_us: Floats,
    profile: Profile,
    *,
    host_ratio: float = 1.0,
    statistic: str = "mean_us",
    times: HostTimes | None = None,
) -> Built:
    """The graph that `lowered` runs on a GPU: each op's T1 to T5 on its thread, its launches, what
    they start, in order on the streams `compute` and `comm`, and `copy` for a pipeline's copies.

    `duration_us` holds one duration per piece; `profile` times the host's work (its `statistic`
    per operator and thread), multiplied by `host_ratio`; `times` is what was measured of it between
    operators. Backward runs on its own thread, which
    the main thread waits for. A CUDA graph takes one launch (`captured`). A step ends when
    its host and its device are done, and the host goes on meanwhile; what ran before the first is
    no step.
    """
    tops, pieces = lowered.by_top_level()
    graphs, notes = captured(lowered, dict(zip(tops, map(bool, pieces), strict=True)))
    engine = {at: name for at, name in ENGINE.items() if (T1, name, at) in profile.rows}
    builder = _GraphBuilder(lowered, duration_us, times, host_ratio, graphs, engine)
    step_of = [lowered.graph.ops[top].step for top in tops]
    marks = []
    before = all(step < 0 for step in step_of)
    for step, group in groupby(range(len(tops)), key=step_of.__getitem__):
        rows = list(group)
        bounds = builder.step(step, [tops[r] for r in rows], [pieces[r] for r in rows])
        if step >= 0 or before:
            marks.append((step, *bounds))
    return builder.draft.built(marks, profile, host_ratio, statistic, notes)
