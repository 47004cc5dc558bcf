"""Where the tensors of a profile's ops lay and on which streams they ran, as launches tell it.

A profile does not record devices. Of its copies, what was launched says whether they crossed
between host and device; ops that launched nothing although they compute ran on the host.

Host time that no operator stands for, as a profile measured it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Ints, distinct_pairs
from perfmodel.lowering.arguments import BY_CALLS, BY_ELEMENTS, FP32, HOST, OWN_STREAM, STREAM, TF32
from perfmodel.lowering.context import COLLECTIVE
from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.rules.copies import MEMCPY
from perfmodel.ops.families import MATMUL, family_of_kernel
from perfmodel.ops.graph import NO_OP, Op, OpGraph, with_tensors
from perfmodel.ops.spec import dtype_of_kernel
from perfmodel.timeline.critical_path import DeviceWork, PathWalker, idle_gaps, idle_pieces
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.kinds import HANDED, NOT_EXPLAINED, Cause, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.graph.waits import CLOCK_TOLERANCE_US
from perfmodel.timeline.schedule import measured as measured_times
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, launching_op
from perfmodel.trace.window import MAIN_THREAD

DIRECTIONS = {
    "Memcpy HtoD": MEMCPY[0],
    "CopyHostToDevice": MEMCPY[0],
    "Memcpy DtoH": MEMCPY[1],
    "CopyDeviceToHost": MEMCPY[1],
}
"""How profiles name a copy, and its direction."""
PINNED = "Pinned"
"""In the name of a copy from or to memory that is not paged out."""
JOINED_BY_ELEMENTS = re.compile(r"CatArrayBatchedCopy(?!_vectorized|_alignedK)")
"""PyTorch's kernels that join tensors without moving vectors."""
MIN_RECORDED_FRAC = 0.5
"""Files that hold less of what ran do not tell that an op launched nothing."""


def uses_tf32(rank: RankTrace) -> bool:
    """Whether matrix products of a profile ran in TF32, by the names of most of their kernels."""
    names = [rank.text(row) for row in np.flatnonzero(rank.is_device).tolist()]
    kinds = [dtype_of_kernel(name) for name in names if family_of_kernel(name) == MATMUL]
    return kinds.count(TF32) > kinds.count(FP32)


def with_placement(graph: OpGraph, rank: RankTrace, links: Links) -> OpGraph:
    """`graph` with what its launches tell of it as attributes.

    Copies are marked (`copy`, `pinned`, and `pipeline` where they ran on another stream than the
    kernels), tensors joined element by element, ops on the host and their tensors (`device`), ops
    whose calls launched all, and records of collectives that launched nothing as waits.

    Only for graphs of a profile whose kernels were recorded; others are returned as they are, but
    for `tf32`, which the kernels there are tell.
    """
    graph = replace(graph, tf32=uses_tf32(rank)) if len(links.device_rows) else graph
    if not len(links.device_rows) or links.recorded_frac < MIN_RECORDED_FRAC:
        return graph
    launched, itself = [False] * len(graph), set[int]()
    marks: dict[int, Mapping[str, str]] = {}
    main = main_stream(rank, links)
    rows = links.device_rows.tolist()
    for row, index in zip(rows, launched_by(graph, rank, links).tolist(), strict=True):
        name = rank.text(row)
        itself.add(index)
        direction = direction_of(name)
        if direction and index != NO_OP:
            attributes = {"copy": direction, "pinned": "1" if PINNED in name else "0"}
            apart = rank.stream[row] != main
            marks[index] = attributes | ({OWN_STREAM: "copies"} if apart else {})
        elif index != NO_OP and JOINED_BY_ELEMENTS.search(name):
            marks[index] = {BY_ELEMENTS: "1"}
        while index != NO_OP and not launched[index]:
            launched[index] = True
            index = graph.ops[index].parent
    ops = tuple(
        _placed(op, launched[index], index in itself, marks.get(index))
        for index, op in enumerate(graph.ops)
    )
    return replace(graph, ops=ops)


def launched_by(graph: OpGraph, rank: RankTrace, links: Links) -> Ints:
    """Per device row of the profile that `graph` is of: the op that it is itself (recorded kernels
    may be), else the op that launched it, or `NO_OP`."""
    op_of_event = np.full(len(rank) + 1, NO_OP, np.int64)
    events = np.array([op.event for op in graph.ops], np.int64)
    op_of_event[events[events >= 0]] = np.flatnonzero(events >= 0)
    own = op_of_event[links.device_rows]
    return np.where(own == NO_OP, op_of_event[launching_op(rank, links)], own)


def answered_by(lowered: Lowered, rank: RankTrace, links: Links) -> Ints:
    """Per device row: the op whose rule answers for the one that launched it.

    That one itself where no rule does; `NO_OP` where no op launched it.
    """
    index = launched_by(lowered.graph, rank, links)
    answering = np.append(lowered.answered_by, NO_OP)[index]
    return np.where(answering == NO_OP, index, answering)


def main_stream(rank: RankTrace, links: Links) -> int:
    streams, counts = np.unique(rank.stream[links.device_rows], return_counts=True)
    return int(streams[counts.argmax()])


def direction_of(name: str) -> str:
    """Which way between host and device the copy of a name went; empty for others."""
    return next((known for start, known in DIRECTIONS.items() if name.startswith(start)), "")


def _placed(op: Op, launched: bool, itself: bool, marks: Mapping[str, str] | None) -> Op:
    if launched and not itself:
        marks = {BY_CALLS: "1"}
    if marks is not None:
        return replace(op, attributes={**op.attributes, **marks})
    if op.name == COLLECTIVE and not launched:
        return replace(op, attributes={**op.attributes, "collective": "wait"})
    if launched or any(tensor.device for tensor in op.tensors):
        return op
    if not op.tensors:
        return replace(op, attributes={**op.attributes, "device": HOST})
    return replace(op, inputs=with_tensors(op.inputs, lambda t: replace(t, device=HOST)))


COMPUTE = "compute"
"""The stream that most of the device's work ran on."""


def with_streams(graph: OpGraph, rank: RankTrace, links: Links) -> OpGraph:
    """`graph` with the stream of each op that launched something (attribute `stream`), and with
    `waits` between ops of different streams, as the measured graph has them.

    An op that launched nothing itself takes the stream of its caller, or that of all its calls.
    Only for graphs of a profile whose kernels were recorded; others are returned as they are.
    """
    if not len(links.device_rows) or links.recorded_frac < MIN_RECORDED_FRAC:
        return graph
    op, main = launched_by(graph, rank, links), main_stream(rank, links)
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for index, number in zip(op.tolist(), rank.stream[links.device_rows].tolist(), strict=True):
        counts[index][COMPUTE if number == main else f"stream{number}"] += 1
    own = ["" if at not in counts else counts[at].most_common(1)[0][0] for at in range(len(graph))]
    below = [{name} - {""} for name in own]
    for index in range(len(graph) - 1, -1, -1):
        parent = graph.ops[index].parent
        if parent != NO_OP:
            below[parent] |= below[index]
    for index, one in enumerate(graph.ops):
        if not own[index] and len(below[index]) == 1:
            (own[index],) = below[index]
        elif not own[index] and one.parent != NO_OP:
            own[index] = own[one.parent]
    ops = tuple(
        replace(one, attributes={**one.attributes, STREAM: name}) if name else one
        for one, name in zip(graph.ops, own, strict=True)
    )
    return replace(graph, ops=ops, waits=_waits(rank, links, op))


def _waits(rank: RankTrace, links: Links, op: Ints) -> Ints:
    """`[E, 2]`: op whose work was waited for, op whose work waited."""
    measured = build_rank(rank, links)
    edges = measured.edges_
    crossing = np.flatnonzero(np.isin(edges.kind, HANDED))
    op_of_row = np.full(len(rank) + 1, NO_OP, np.int64)
    op_of_row[links.device_rows] = op
    rows = measured.nodes_.row[np.stack([edges.source[crossing], edges.target[crossing]], axis=1)]
    pairs = op_of_row[rows]
    known = (pairs != NO_OP).all(axis=1) & (pairs[:, 0] != pairs[:, 1])
    return np.stack(distinct_pairs(*pairs[known].T), axis=1)


@dataclass(frozen=True)
class Stretch:
    """A stretch of the main thread's time within a step, waiting excluded."""

    row: int
    """The first row of the trace that begins no earlier."""
    step: int
    duration_us: float
    cause: Cause
    """`DATA_LOADING`, or `HOST_T1` for what is between operators."""
    label: str
    op: int
    """Row of the thread's next outermost operator in its step, or -1."""
    at_bounds: bool = False
    """Whether no operator of its step comes before it, or none behind it."""

    def is_left(self, rows: Collection[int]) -> bool:
        """Whether it is there where of all operators those in `rows` are: what is between operators
        goes with the one behind it."""
        return self.cause == Cause.DATA_LOADING or self.at_bounds or self.op in rows


@dataclass(frozen=True)
class HostTimes:
    """All stretches of one rank, in order of time."""

    stretches: tuple[Stretch, ...] = ()
    ratio: float = 1.0
    """How much longer the target's host takes."""

    def with_loading(self, ratio: float) -> HostTimes:
        """With data loading `ratio` times as long."""
        scaled = tuple(
            replace(each, duration_us=each.duration_us * ratio)
            if each.cause == Cause.DATA_LOADING
            else each
            for each in self.stretches
        )
        return replace(self, stretches=scaled)

    def step_us(self, cause: Cause) -> float:
        """Mean per step of the stretches of a cause, on the target's host."""
        steps = len({each.step for each in self.stretches})
        own = sum(each.duration_us for each in self.stretches if each.cause == cause)
        return own * self.ratio / steps if steps else 0.0


def measured_stretches(
    rank: RankTrace, links: Links, measured: ExecutionGraph
) -> tuple[Stretch, ...]:
    """Those of a rank, in order of time; `measured` is its graph as it was recorded.

    Of data loading the operators belong to the stretch too, but for their launch calls.
    """
    nodes = measured.nodes_
    main = [at for at, name in enumerate(measured.resources) if name.endswith(f"/{MAIN_THREAD}")]
    chosen = np.flatnonzero(
        np.isin(nodes.resource, main)
        & np.isin(nodes.kind, (NodeKind.HOST, NodeKind.WAIT))
        & np.isin(nodes.cause, (Cause.HOST_T1, Cause.DATA_LOADING))
        & (nodes.duration_us > 0)
    )
    chosen = chosen[np.argsort(nodes.start_us[chosen], kind="stable")]
    begun = nodes.start_us[chosen]
    step_of = links.steps.of_time(begun)
    rows = np.searchsorted(rank.start_us, begun, side="left")
    threads = [thread for thread, role in links.roles.items() if role == MAIN_THREAD]
    ops = np.sort(links.top_ops[np.isin(rank.thread[links.top_ops], threads)])
    op_step = links.steps.of_time(rank.start_us[ops]).tolist()
    behind = np.searchsorted(ops, rows, side="left").tolist()
    stretches = []
    for node, step, row, at in zip(
        chosen.tolist(), step_of.tolist(), rows.tolist(), behind, strict=True
    ):
        if step < 0 or nodes.start_us[node] >= links.steps.end_us[step]:
            continue
        is_last = at == len(ops) or op_step[at] != step
        is_first = at == 0 or op_step[at - 1] != step
        label = measured.labels[node] or measured.annotations[node]
        cause, op = Cause(int(nodes.cause[node])), NONE if is_last else int(ops[at])
        taken_us = float(nodes.duration_us[node])
        stretches.append(Stretch(row, step, taken_us, cause, label, op, is_first or is_last))
    return tuple(stretches)


def unexplained_waits(graph: ExecutionGraph) -> dict[int, float]:
    """By device row of a recorded rank: idle time before it that no prediction from shapes has."""
    timeline, waits = measured_times(graph), dict[int, float]()
    if not len(graph.marks.start):
        return waits
    device, walker = DeviceWork.of(timeline), PathWalker(timeline)
    causes = (*NOT_EXPLAINED, Cause.WAITING_FOR_INPUT)
    begun, over = timeline.end_us[graph.marks.start[0]], timeline.end_us[graph.marks.end[-1]]
    for gap in idle_gaps(device, float(begun), float(over)):
        if gap.node != NONE and gap.end_us - gap.start_us > CLOCK_TOLERANCE_US:
            pieces = idle_pieces([gap], walker)
            waited = sum(p.end_us - p.start_us for p in pieces if p.cause in causes)
            if waited > CLOCK_TOLERANCE_US:
                waits[int(graph.nodes_.row[gap.node])] = waited
    return waits
