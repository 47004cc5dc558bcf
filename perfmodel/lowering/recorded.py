"""What a profile recorded on the device and no rule stands for, as ops that take as long as it did.

Graph launches and compiled regions call no operators, some operators no rule knows, and of some
kernels no launch is recorded. Each such kernel becomes an op of its own: called by the operator
that launched it; by an op that stands for its launch call; or, where no launch is known, by none,
before whatever was next on its stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.observed import PINNED, direction_of, launched_by
from perfmodel.lowering.piece import OF_PROFILE
from perfmodel.lowering.rules.copies import MEMCPY
from perfmodel.ops.graph import DEVICE_WIDE, NO_OP, Op, OpGraph, outermost_of
from perfmodel.ops.read.profile import ops_before_device_waits
from perfmodel.ops.vocabulary.streaming import UNKNOWN
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.window import MAIN_THREAD

STAND_IN = "stand_in"
"""Attribute of an op that stands for a launch call outside of all ops, or for one that is not
recorded; its kernels are its only calls."""
LAUNCH, CALL, CALL_US, REST_US = "launch", "call", "call_us", "rest_us"
"""Attributes of such an op and of a recorded kernel: the row of its launch call (there is one for a
whole graph), the call's name, what it took, and for how long it went on once its kernel had begun.
"""
UNLAUNCHED = "launch not recorded"
WAITED_US = "waited_us"
"""Attribute of an op whose first operation on the device waited so long for what is not known."""
HELD_US = "held_us"
"""Attribute of an op behind which the host stands still so long for what is not known."""


@dataclass(frozen=True)
class Recorded:
    """A rank's ops with what was recorded, and how much of its device time that is."""

    graph: OpGraph
    total_us: float
    """Of all that ran on the device from the first step on."""
    by_rule_us: float
    """Of that, in kernels that rules stand for."""
    by_launcher_us: Mapping[str, float]
    """In those that are ops of the graph, by what launched them, most first; under `""` those whose
    launch is not recorded."""

    @property
    def modelled_frac(self) -> float:
        """Share of the device time that follows from shapes."""
        return self.by_rule_us / self.total_us if self.total_us else 1.0

    @property
    def recorded_frac(self) -> float:
        """Share that is taken as it was recorded."""
        return sum(self.by_launcher_us.values()) / self.total_us if self.total_us else 0.0


def with_recorded(
    lowered: Lowered, rank: RankTrace, links: Links, measured: ExecutionGraph
) -> Recorded:
    """The ops of `lowered`, which are those of a profile, with the kernels that no rule stands for.

    A rule stands for the kernels of its op and of what that calls. What was launched before the
    window belongs to its one step, where it has one; of several each has its own work, and what the
    first was busy with besides is left out. `measured` is the rank's graph
    as it was recorded, which tells how long launch calls took without their waiting.
    """
    graph = lowered.graph
    launcher = launched_by(graph, rank, links)
    rows = links.device_rows
    begin = links.steps.start_us[0] if len(links.steps) else -np.inf
    start_us = np.maximum(rank.start_us[rows], begin)
    taken_us = np.maximum(rank.end_us[rows] - start_us, 0.0).astype(np.float64)
    by_rule = np.append(_stood_for(lowered), False)[launcher]
    before = _launched_before(rank, links) if len(links.steps) > 1 else np.zeros_like(by_rule)
    carried = np.flatnonzero(~by_rule & ~before & (taken_us > 0))
    by_launcher: defaultdict[str, float] = defaultdict(float)
    for at in carried.tolist():
        op, launch = int(launcher[at]), int(links.device_launch[at])
        name = graph.ops[op].name if op != NO_OP else "" if launch == NONE else rank.text(launch)
        by_launcher[name] += float(taken_us[at])
    if len(carried):
        graph = _Insertion(graph, rank, links, measured, launcher, taken_us).of(carried)
    return Recorded(
        graph,
        float(taken_us.sum()),
        float(taken_us[by_rule].sum()),
        dict(sorted(by_launcher.items(), key=lambda item: -item[1])),
    )


def with_waits(
    graph: OpGraph, rank: RankTrace, links: Links, waited_us: Mapping[int, float]
) -> OpGraph:
    """`graph` with the waits of device rows, those of an op's operations as one."""
    of_op: defaultdict[int, float] = defaultdict(float)
    for row, op in zip(links.device_rows.tolist(), launched_by(graph, rank, links), strict=True):
        if op != NO_OP and row in waited_us:
            of_op[int(op)] += waited_us[row]
    ops = list(graph.ops)
    for index, us in of_op.items():
        ops[index] = replace(ops[index], attributes={**ops[index].attributes, WAITED_US: repr(us)})
    return replace(graph, ops=tuple(ops))


def _launched_before(rank: RankTrace, links: Links) -> Mask:
    """Per device row, whether its launch is not recorded and the first recorded one of its stream,
    or of all where its stream has none, comes later."""
    unknown = links.device_launch == NONE
    stream = rank.stream[links.device_rows]
    known = np.flatnonzero(~unknown)
    first = {int(stream[at]): at for at in reversed(known.tolist())}
    any_first = int(known[0]) if len(known) else 0
    place = np.array([first.get(int(each), any_first) for each in stream.tolist()], np.int64)
    launched: Mask = unknown & (np.arange(len(stream)) < place)
    return launched


def _stood_for(lowered: Lowered) -> Mask:
    """Per op: whether a rule's pieces stand for what it launched, its own or of an op around it."""
    ops = lowered.graph.ops
    has_rule = np.zeros(len(ops), bool)
    has_rule[lowered.owner[[piece.op != UNKNOWN for piece in lowered.pieces]]] = True
    stood_for = has_rule.copy()
    for index, op in enumerate(ops):
        answering = int(lowered.answered_by[index])
        if (answering != NO_OP and has_rule[answering]) or (
            op.parent != NO_OP and stood_for[op.parent]
        ):
            stood_for[index] = True
    return stood_for


Key = tuple[str, int]
"""Of an op: `op` and its index before, or `call` and the row that it stands for."""


@dataclass(frozen=True)
class _Insertion:
    """Ops for device rows, and where among those of a graph they stand.

    Places are rows of the trace, in which ops are in order of their begin.
    """

    graph: OpGraph
    rank: RankTrace
    links: Links
    measured: ExecutionGraph
    launcher: Ints
    taken_us: Floats

    @cached_property
    def calls(self) -> dict[int, tuple[float, float]]:
        """Per row of a launch call, what it takes without waiting, and what it goes on for."""
        nodes = self.measured.nodes_
        times_of: dict[int, tuple[float, float]] = {}
        for kind in (NodeKind.LAUNCH, NodeKind.WAIT):
            for node in np.flatnonzero(nodes.kind == kind).tolist():
                row, us = int(nodes.row[node]), float(nodes.duration_us[node])
                call_us, rest_us = times_of.get(row, (0.0, 0.0))
                is_launch = kind == NodeKind.LAUNCH
                times_of[row] = (call_us + us, rest_us) if is_launch else (call_us, rest_us + us)
        return times_of

    def of(self, carried: Ints) -> OpGraph:
        """The graph with an op for each of these device rows (positions in `links`), callers before
        what they call."""
        following, ops = self._following(), self.graph.ops
        entries: list[tuple[float, Key | None, Op, Key | None]] = [
            (float(op.event), ("op", index), op, ("op", op.parent)) for index, op in enumerate(ops)
        ]
        """Place, key, op, key of its caller."""
        standing = set[Key]()
        for at in carried.tolist():
            launch, launcher = int(self.links.device_launch[at]), int(self.launcher[at])
            if launcher != NO_OP:
                around, key = ops[launcher], ("op", launcher)
                place = max(float(launch), float(around.event)) + 0.5
            else:
                is_known = launch != NONE
                place = float(launch) if is_known else float(following[at]) - 0.5
                key = "call", launch if is_known else int(self.links.device_rows[at])
                around = self._stand_in(at, launch, following[at])
                if key not in standing:
                    standing.add(key)
                    entries.append((place, key, around, None))
            entries.append((place, None, self._kernel(at, launch, around), key))
        entries.sort(key=itemgetter(0))
        new = {key: at for at, (_, key, _, _) in enumerate(entries) if key is not None}
        made = [
            replace(op, parent=NO_OP if key is None else new.get(key, NO_OP))
            for _, _, op, key in entries
        ]
        new_of_old = np.array([new["op", index] for index in range(len(ops))], np.int64)
        data = new_of_old[self.graph.data].reshape(-1, 2)
        return replace(self.graph, ops=tuple(self._waiting(made)), data=data)

    def _following(self) -> list[float]:
        """Per device row the place of the outermost op, or call outside of all, that launched the
        next one on its stream whose launch is known; else on any; else the end."""
        rows, streams = self.links.device_rows, self.rank.stream[self.links.device_rows].tolist()
        end, top = float(len(self.rank)), outermost_of(self.graph.ops)
        on_stream: dict[int, float] = {}
        on_any, following = end, [end] * len(rows)
        for at in range(len(rows) - 1, -1, -1):
            launch, launcher = int(self.links.device_launch[at]), int(self.launcher[at])
            if launch != NONE:
                place = self.graph.ops[top[launcher]].event if launcher != NO_OP else launch
                on_stream[streams[at]] = on_any = float(place)
            following[at] = on_stream.get(streams[at], on_any)
        return following

    def _stand_in(self, at: int, launch: int, following: float) -> Op:
        """An op for the launch call of a device row that no op launched."""
        about = {STAND_IN: "1", **self._call(launch)}
        if launch == NONE:
            row = int(self.links.device_rows[at])
            last_step = self.graph.ops[-1].step if self.graph.ops else 0
            step = self._step_of(int(following)) if following < len(self.rank) else last_step
            return Op(UNLAUNCHED, thread=MAIN_THREAD, step=step, event=row, attributes=about)
        thread = self.links.roles.get(int(self.rank.thread[launch]), MAIN_THREAD)
        step = self._step_of(launch)
        return Op(about[CALL], thread=thread, step=step, event=launch, attributes=about)

    def _call(self, launch: int) -> dict[str, str]:
        """What is known of a launch call; nothing of one that is not recorded."""
        if launch == NONE:
            return {}
        call_us, rest_us = self.calls.get(launch, (float(self.rank.duration_us[launch]), 0.0))
        return {
            LAUNCH: str(launch),
            CALL: self.rank.text(launch),
            CALL_US: repr(call_us),
            REST_US: repr(rest_us),
        }

    def _step_of(self, row: int) -> int:
        return int(self.links.steps.of_time(self.rank.start_us[[row]])[0])

    def _kernel(self, at: int, launch: int, around: Op) -> Op:
        """The op of one device row, called by `around`."""
        row = int(self.links.device_rows[at])
        name = self.rank.text(row)
        is_kernel = self.rank.category[row] == Category.KERNEL
        kind = "kernel" if is_kernel else "copy"
        about = {"recorded_us": repr(float(self.taken_us[at])), **self._call(launch)}
        if is_kernel and self.rank.is_communication[row]:
            kind = "collective"
            group = int(self.rank.process_group[row])
            alone = f"of rank {self.rank.rank} alone"
            about["process_group"] = self.rank.strings[group] if group >= 0 else alone
        elif direction_of(name) == MEMCPY[1] and PINNED not in name:
            about["blocks"] = "1"
        about["kind"] = kind
        return Op(f"{OF_PROFILE}{name}", (), (), NO_OP, around.thread, around.phase, around.step,
                  row, about)  # fmt: skip

    def _waiting(self, ops: list[Op]) -> list[Op]:
        """`ops` with the host's waits for the device behind the last that stands before each, now
        that launch calls stand among them."""
        is_device = self.rank.is_device
        of_host = [op for op in ops if op.event >= 0 and not is_device[op.event]]
        events, parents = [op.event for op in of_host], [op.parent for op in of_host]
        behind = ops_before_device_waits(self.rank, events, parents)
        waiting = []
        for op in ops:
            about = {k: v for k, v in op.attributes.items() if k not in DEVICE_WIDE}
            if op.event in behind:
                about |= DEVICE_WIDE
            waiting.append(op if about == op.attributes else replace(op, attributes=about))
        return waiting
