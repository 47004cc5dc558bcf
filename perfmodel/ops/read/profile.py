"""The op graph of a profile whose ops record shapes; which phase of a step an op belongs to: by the
labels and calls around it, and by its thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.ops.graph import (
    BACKWARD,
    DEVICE_WIDE,
    FORWARD,
    INPUT,
    NO_OP,
    OPTIMIZER,
    Arguments,
    Op,
    OpGraph,
    dtype_notes,
)
from perfmodel.ops.read.arguments import ProfileArguments, of_call, of_event
from perfmodel.trace.categories import DEVICE_WAIT_CALL, STEP_NAME, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, enclosing
from perfmodel.trace.window import MAIN_THREAD, NUMBERED_MARK

RECORDER_ENDINGS = ("|process]", "|thread]", "process_group:init ##")
"""How names of events end that an observer adds."""


def events_around(rank: RankTrace, rows: Ints) -> list[int]:
    """Per row of `rows` (in the rank's order): position in `rows` of the innermost event around it,
    or `NO_OP`.

    An event is enclosed by an earlier one of its thread that it begins before the end of and does
    not end after; neighbours that overlap by rounding do not enclose one another.
    """
    nearest = enclosing(rank, rows)
    around = nearest.copy()
    start_us, end_us = rank.start_us[rows], rank.end_us[rows]
    while True:
        is_over = (around >= 0) & ((end_us[around] < end_us) | (end_us[around] <= start_us))
        if not is_over.any():
            return around.tolist()  # type: ignore[no-any-return]
        around[is_over] = nearest[around[is_over]]


def ops_among(
    names: Sequence[str],
    is_op: Sequence[bool],
    around: Sequence[int],
    threads: Sequence[str],
    calls: Iterable[tuple[int, Arguments, Arguments, int, Mapping[str, str]]],
) -> tuple[Op, ...]:
    """The ops among a program's events, given of each event the one `around` it (its index, before
    what it encloses); annotations, steps, threads and the process are no ops. `calls` are, of each
    op, its step, what it was given and returned, its event, and what else is said of it; the
    annotation around it stands among its attributes.

    A phase is an op's own, else that of what is around it; what stands alone is backward on
    threads that the autograd engine uses but `main`. Copies are input where none but copies,
    allocations and the optimizer's `zero_grad` precede them in a step."""
    own = list(map(_phase, names, is_op))
    engine = {t for t, phase in zip(threads, own, strict=True) if phase == BACKWARD}
    ops, done, left = list[Op](), set[int](), iter(calls)
    nearest, labels, phases = list[int](), list[str](), list[str]()
    """Per event: the op and the annotation that are nearest around what it encloses; its phase."""
    alone: dict[str, Mapping[str, str]] = {"": MappingProxyType({})}
    for at, (name, above, thread) in enumerate(zip(names, around, threads, strict=True)):
        parent, label = (NO_OP, "") if above == NO_OP else (nearest[above], labels[above])
        is_nested = above != NO_OP and threads[above] == thread
        usual = BACKWARD if thread in engine - {MAIN_THREAD} else FORWARD
        phase = own[at] or (phases[above] if is_nested else usual)
        phases.append(phase)
        nearest.append(len(ops) if is_op[at] else parent)
        if not is_op[at]:
            is_unnamed = name.endswith(RECORDER_ENDINGS) or STEP_NAME.match(name)
            labels.append(label if is_unnamed else name)
            continue
        labels.append(label)
        step, inputs, outputs, event, said = next(left)
        if parent != NO_OP:
            phase = INPUT if ops[parent].phase == INPUT else phase
        elif step not in done and phase == FORWARD:
            if name in _ARRIVING:  # copies that begin a step
                phase = INPUT
            elif name not in _IDLE:
                done.add(step)
        about = alone.setdefault(label, MappingProxyType({"annotation": label}))
        about = MappingProxyType({**about, **said}) if said else about
        ops.append(Op(name, inputs, outputs, parent, thread, phase, step, event, about))
    return tuple(ops)


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
    return graph_of_events(rank, links, world_size)


def graph_of_events(rank: RankTrace, links: Links, world_size: int) -> OpGraph:
    """The ops of a profile, whatever it recorded of their inputs."""
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    host = host[~rank.name_matches(NUMBERED_MARK)[host]]
    is_op = rank.category[host] == Category.CPU_OP
    names = [rank.text(row) for row in host.tolist()]
    threads = [links.roles.get(thread, MAIN_THREAD) for thread in rank.thread[host].tolist()]
    events: list[int] = host[is_op].tolist()
    steps = links.steps.of_time(rank.start_us[host[is_op]]).tolist()
    read = ProfileArguments(rank, host[is_op])
    said = [
        of_event(rank, event)
        if rank.collective[event] != NONE
        else of_call(name, arguments, world_size)
        for event, name, arguments in zip(events, map(rank.text, events), read.given, strict=True)
    ]
    calls = zip(steps, read.given, [()] * len(events), events, said, strict=True)
    ops = ops_among(names, is_op.tolist(), events_around(rank, host), threads, calls)
    waited = ops_before_device_waits(rank, events, [op.parent for op in ops])
    ops = tuple(
        replace(op, attributes=MappingProxyType({**op.attributes, **DEVICE_WIDE}))
        if op.event in waited
        else op
        for op in ops
    )
    return OpGraph(
        ops=ops,
        rank=rank.rank,
        world_size=max(world_size, rank.world_size or 1),
        source=rank.where,
        notes=(*rank.warnings, _NO_DATA, *dtype_notes(read.unknown_dtypes)),
    )


_CALLS = re.compile(
    r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$"
)
"""Ops that are the backward pass, with all that they call."""

_LABELS = {
    OPTIMIZER: r"optimizer|zero_?grad",
    BACKWARD: r"backward",
    INPUT: r"dataload|(next|load|copy|wait_for)_batch|batch_data|(data|input|splits)_dist\b"
    r"|sparse_data_dist|emb data|all2all_data:kjt|KJT\w*Awaitable|recat_permute",
    FORWARD: r"forward|loss",
}
"""A phase, and the user's annotations that name it, in any letters; the first that fits."""

_ARRIVING = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory", "aten::is_pinned")
"""What a program does to a batch before its first layer."""
_IDLE = ("aten::empty", "aten::zeros", "aten::zero_", "aten::detach", "detach")


@lru_cache(maxsize=1 << 14)
def _phase(name: str, is_op: bool) -> str | None:
    """`backward` for a call of the autograd engine; the phase that an annotation names, if any."""
    if is_op:
        return BACKWARD if _CALLS.match(name) else None
    return next((phase for phase, text in _LABELS.items() if re.search(text, name, re.I)), None)
