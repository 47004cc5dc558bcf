"""The op graph of a profile whose ops record shapes; which phase of a step an op belongs to: by the
labels and calls around it, and by its thread."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
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


class Nested:
    """Which of a program's events are ops, and what is known of each by where it stands: lists with
    an entry per event, `around` (its index) before what it encloses. Annotations, steps, threads
    and the process are no ops."""

    def __init__(
        self, names: list[str], is_op: list[bool], around: list[int], threads: list[str]
    ) -> None:
        self.names, self.threads = names, threads
        self.at = [index for index, op in enumerate(is_op) if op]
        """Indices of the ops."""
        self._owner, self._label = [], list[str]()
        """The nearest op around each, or `NO_OP`; the nearest annotation around it, or ''."""
        for above in around:
            if above == NO_OP or is_op[above]:
                self._owner.append(above)
                self._label.append("" if above == NO_OP else self._label[above])
                continue
            name = names[above]
            is_unnamed = name.endswith(RECORDER_ENDINGS) or STEP_NAME.match(name)
            self._owner.append(self._owner[above])
            self._label.append(self._label[above] if is_unnamed else name)
        own = list(map(_phase, names, is_op))
        engine = {t for t, phase in zip(threads, own, strict=True) if phase == BACKWARD}
        self._phases: list[str] = []
        for phase, above, thread in zip(own, around, threads, strict=True):
            is_nested = above != NO_OP and threads[above] == thread
            alone = BACKWARD if thread in engine - {MAIN_THREAD} else FORWARD
            self._phases.append(phase or (self._phases[above] if is_nested else "") or alone)

    def ops(
        self,
        steps: Sequence[int],
        inputs: Sequence[Arguments],
        outputs: Sequence[Arguments],
        events: Sequence[int],
        said: Sequence[Mapping[str, str]],
    ) -> tuple[Op, ...]:
        """The ops, given of each its step, arguments, event, and what else is said of it; the
        annotation around it stands among its attributes.

        A phase is an op's own, else that of what is around it; what stands alone is backward on
        threads that the autograd engine uses but `main`. Copies are input where none but copies,
        allocations and the optimizer's `zero_grad` precede them in a step."""
        index_of = {at: index for index, at in enumerate(self.at)}
        names = [self.names[at] for at in self.at]
        parents = [index_of.get(self._owner[at], NO_OP) for at in self.at]
        phases, done = [self._phases[at] for at in self.at], set[int]()
        for op, (name, parent, step) in enumerate(zip(names, parents, steps, strict=True)):
            if parent != NO_OP:
                phases[op] = INPUT if phases[parent] == INPUT else phases[op]
            elif step not in done and phases[op] == FORWARD:
                if name in _ARRIVING:  # copies that begin a step
                    phases[op] = INPUT
                elif name not in _IDLE:
                    done.add(step)
        labels = [self._label[at] for at in self.at]
        alone = {text: MappingProxyType({"annotation": text} if text else {}) for text in labels}
        attributes = (
            MappingProxyType({**alone[label], **more}) if more else alone[label]
            for label, more in zip(labels, said, strict=True)
        )
        threads = (self.threads[at] for at in self.at)
        columns = names, inputs, outputs, parents, threads, phases, steps, events, attributes
        return tuple(itertools.starmap(Op, zip(*columns, strict=True)))


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
    nested = Nested(
        [rank.text(row) for row in host.tolist()],
        is_op.tolist(),
        events_around(rank, host),
        [links.roles.get(thread, MAIN_THREAD) for thread in rank.thread[host].tolist()],
    )
    events: list[int] = host[is_op].tolist()
    steps = links.steps.of_time(rank.start_us[host[is_op]]).tolist()
    read = ProfileArguments(rank, host[is_op])
    said = [
        of_event(rank, event)
        if rank.collective[event] != NONE
        else of_call(name, arguments, world_size)
        for event, name, arguments in zip(events, map(rank.text, events), read.given, strict=True)
    ]
    ops = nested.ops(steps, read.given, [()] * len(events), events, said)
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
