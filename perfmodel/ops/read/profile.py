"""The op graph of a profile whose ops record shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from perfmodel.arrays import Ints, Mask, distinct
from perfmodel.errors import TraceError
from perfmodel.ops.graph import DEVICE_WIDE, NO_OP, Argument, Op, OpGraph, dtype_notes
from perfmodel.ops.read.arguments import ProfileArguments, usual_dtype
from perfmodel.ops.read.attributes import of_call, of_event
from perfmodel.ops.read.phases import inherit_phases, phase_of_call, phase_of_label, with_arrivals
from perfmodel.trace.categories import DEVICE_WAIT_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.window import MAIN_THREAD, NUMBERED_MARK


def enclosing_ops(rank: RankTrace, rows: Ints, is_op: Mask) -> tuple[list[int], list[int]]:
    """Per row of `rows` (in the rank's order): position in `rows` of the innermost op around it,
    and of the innermost event of either kind, or `NO_OP`.

    An event is enclosed by an earlier one of its thread that it begins before the end of and does
    not end after; neighbours that overlap by rounding do not enclose one another.
    """
    ops = np.full(len(rows), NO_OP, np.int64)
    any_kind = np.full(len(rows), NO_OP, np.int64)
    threads = rank.thread[rows]
    for thread in distinct(threads):
        own = np.flatnonzero(threads == thread)
        starts, ends = rank.start_us[rows[own]].tolist(), rank.end_us[rows[own]].tolist()
        open_events: list[tuple[float, int, bool]] = []
        for at, start, end, op in zip(own.tolist(), starts, ends, is_op[own].tolist(), strict=True):
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            nearest = NO_OP
            for other_end, other, other_op in reversed(open_events):
                if other_end > start and other_end >= end:
                    if nearest == NO_OP:
                        any_kind[at] = nearest = other
                    if other_op:
                        ops[at] = other
                        break
            open_events.append((end, at, op))
    return ops.tolist(), any_kind.tolist()


def ops_before_device_waits(
    rank: RankTrace, events: Sequence[int], parents: Sequence[int]
) -> set[int]:
    """Of `events` (rows of ops, with the `parents` of each), the outermost that are the last on
    their thread before a call waits for the device. Calls within an op are the op's own."""
    outermost = np.array([e for e, p in zip(events, parents, strict=True) if p == NO_OP], np.int64)
    calls = rank.of(Category.RUNTIME)
    ops = set()
    for call in calls[rank.name_matches(DEVICE_WAIT_CALL)[calls]].tolist():
        own = outermost[rank.thread[outermost] == rank.thread[call]]
        before = own[rank.start_us[own] <= rank.start_us[call]]
        if len(before):
            last = int(before[np.argmax(rank.start_us[before])])
            if rank.end_us[last] <= rank.start_us[call]:
                ops.add(last)
    return ops


_NO_DATA = "a profile alone: which op made a tensor is not known, nor what an op returned"


def of_kineto(rank: RankTrace, links: Links, world_size: int = 1) -> OpGraph:
    """The ops of a profile with their recorded shapes, types, strides and plain arguments.

    Ops nest by time on their thread; `step` is the `ProfilerStep` that began last, -1 before the
    first. There are no data edges. Raises `TraceError` when no op records shapes.
    """
    ops = rank.of(Category.CPU_OP)
    lacking = int(np.count_nonzero(rank.input_shapes[ops] == NONE))
    if lacking == len(ops):
        raise TraceError(
            f"{rank.where}: {lacking} of {len(ops)} ops lack shapes: "
            "profile with record_shapes=True, or give its execution trace"
        )
    return graph_of_events(rank, links, world_size, inputs_of_events(rank))


def graph_of_events(
    rank: RankTrace,
    links: Links,
    world_size: int,
    inputs: tuple[list[tuple[Argument, ...]], list[str]],
) -> OpGraph:
    """The ops of a profile, given the inputs of each and notes on them."""
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    host = host[~rank.name_matches(NUMBERED_MARK)[host]]
    is_op = rank.category[host] == Category.CPU_OP
    owner, around = enclosing_ops(rank, host, is_op)
    names = [rank.text(row) for row in host.tolist()]
    threads = [links.roles.get(thread, MAIN_THREAD) for thread in rank.thread[host].tolist()]
    own = [
        phase_of_call(name) if op else phase_of_label(name)
        for name, op in zip(names, is_op.tolist(), strict=True)
    ]
    phases = inherit_phases(own, around, threads)
    labels = _labels(names, is_op.tolist(), around)
    at = np.flatnonzero(is_op).tolist()
    index_of = {position: index for index, position in enumerate(at)}
    op_names = [names[i] for i in at]
    parents = [index_of.get(owner[i], NO_OP) for i in at]
    steps = links.steps.of_time(rank.start_us[host[is_op]]).tolist()
    op_phases = with_arrivals([phases[i] for i in at], op_names, parents, steps)
    events = host[is_op].tolist()
    given, notes = inputs
    said = [
        of_event(rank, event)
        if rank.collective[event] != NONE
        else of_call(name, arguments, world_size)
        if name.startswith("c10d::")
        else {}
        for event, name, arguments in zip(events, op_names, given, strict=True)
    ]
    attributes = annotated([labels[i] for i in at], said)
    waited = ops_before_device_waits(rank, events, parents)
    attributes = [
        MappingProxyType({**known, **DEVICE_WIDE}) if event in waited else known
        for event, known in zip(events, attributes, strict=True)
    ]
    graph = tuple(
        Op(name, arguments, (), parent, threads[i], phase, step, event, known)
        for i, name, arguments, parent, phase, step, event, known in zip(
            at, op_names, given, parents, op_phases, steps, events, attributes, strict=True
        )
    )
    return OpGraph(
        ops=graph,
        rank=rank.rank,
        world_size=max(world_size, rank.world_size or 1),
        source=rank.where,
        notes=(*rank.warnings, *notes),
    )


def _labels(names: list[str], is_op: list[bool], around: list[int]) -> list[str]:
    """The innermost annotation around each event, or ''."""
    labels: list[str] = []
    for above in around:
        if above == NO_OP:
            labels.append("")
        else:
            labels.append(labels[above] if is_op[above] else names[above])
    return labels


def inputs_of_events(rank: RankTrace) -> tuple[list[tuple[Argument, ...]], list[str]]:
    """What each op of a profile was given, as far as it was recorded, and notes on that."""
    ops = rank.of(Category.CPU_OP)
    texts = rank.strings.texts
    usual = usual_dtype([texts[i] for i in distinct(rank.input_dtypes[ops]).tolist() if i >= 0])
    read = ProfileArguments(rank.strings.__getitem__, rank.where, usual)
    columns = (rank.input_shapes, rank.input_dtypes, rank.input_values, rank.input_strides)
    inputs = list(map(read.of, *(column[ops].tolist() for column in columns)))
    return inputs, [_NO_DATA, *dtype_notes(read.unknown_dtypes)]


def annotated(labels: Sequence[str], said: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Per op its annotation ('' for none), and what else is said of it."""
    alone = {label: MappingProxyType({"annotation": label} if label else {}) for label in labels}
    return [
        MappingProxyType({**alone[label], **more}) if more else alone[label]
        for label, more in zip(labels, said, strict=True)
    ]
