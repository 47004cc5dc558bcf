"""T1 to T5 and operators without launches, measured on one rank's events, waiting left out.

Recording one costs the host time that a run without the profiler does not spend.
Source: Lin et al. 2022, section IV-C, and the published code's `CPU_EVENT_OVERHEAD` (2 us).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.errors import UsageError
from perfmodel.lowering.host.samples import (
    CODE,
    OP_WITHOUT_LAUNCH,
    T1,
    T2,
    T3,
    T4,
    T5,
    TYPES,
    Samples,
)
from perfmodel.trace.categories import BACKWARD_OP, COPY_CALL, SYNC_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, by_thread, equal_runs
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

LONG_COPY_US = 50.0
"""A copy call longer than this waited; no call that only enqueues takes as long."""


def overlaps(
    start_us: Floats, end_us: Floats, other_start_us: Floats, other_end_us: Floats
) -> Mask:
    """Which intervals share time with any of the others (touching ends share none).

    The others are in order of start; they may overlap one another.
    """
    if not len(other_start_us):
        return np.zeros(len(start_us), bool)
    latest_end = np.maximum.accumulate(other_end_us)
    at = np.searchsorted(other_start_us, end_us, side="left") - 1
    overlapping: Mask = (at >= 0) & (latest_end[at] > start_us)
    return overlapping


def waits_in_thread(rank: RankTrace, thread: Ints, start_us: Floats, end_us: Floats) -> Mask:
    """Which intervals of host time overlap a blocking call of their own thread (by its id): one
    that synchronises, or a copy call above 50 us."""
    calls = rank.of(Category.RUNTIME)
    long_copy = rank.name_matches(COPY_CALL)[calls] & (rank.duration_us[calls] > LONG_COPY_US)
    calls = by_thread(rank, calls[rank.name_matches(SYNC_CALL)[calls] | long_copy])
    waits = np.zeros(len(start_us), bool)
    for low, high in equal_runs(rank.thread[calls]):
        rows = calls[low:high]
        mine = np.flatnonzero(thread == rank.thread[rows[0]])
        waits[mine] = overlaps(start_us[mine], end_us[mine], rank.start_us[rows], rank.end_us[rows])
    return waits


def measure(rank: RankTrace, links: Links, *, profiler_us_per_event: float = 0.0) -> Samples:
    """Every host overhead of one rank as one sample, in microseconds.

    A *top-level op* is the outermost operator on its thread; those that start within the steps
    count, one between two steps for the earlier. T1 is the gap before an op (named after it; never
    across a step start), T2 its start to its first launch call, T3 the end of its last launch call
    to its end, T4 each launch call, T5 the gap between its consecutive launch calls; an op that
    launches nothing is a sample of `op_without_launch`. A launch belongs to an op only if it also
    ends within it. Where neighbours overlap (rounding, an op that outlives its caller) the earlier
    ends where the later begins. `profiler_us_per_event` is what the profiler spends on one host
    event: taken off a sample per event recorded inside it, and once more off T1 (for the op that
    follows) and T4 (for the call); no sample falls below 0. Raises `UsageError` where it is
    negative or not a number.
    """
    if not (math.isfinite(profiler_us_per_event) and profiler_us_per_event >= 0):
        raise UsageError(
            f"profiler_us_per_event: {profiler_us_per_event} is not a duration: expected 0 or more"
        )
    ops = links.top_ops
    step = links.steps.of_time(rank.start_us[ops])
    inside = step >= 0
    if not links.steps.is_window and len(links.steps):
        inside &= rank.start_us[ops] < links.steps.end_us.max()
    parts, launches = _intervals(rank, links, step, inside)
    sizes = [len(parts[name][0]) for name in TYPES]
    kind = np.repeat(np.arange(len(TYPES), dtype=np.int8), sizes)
    op, start, end = (np.concatenate([parts[name][i] for name in TYPES]) for i in range(3))
    call = np.full(len(op), NONE, np.int32)
    call[kind == CODE[T4]] = rank.name[launches]
    value = end - start
    if profiler_us_per_event:
        value -= profiler_us_per_event * _recorded(rank, kind, rank.thread[ops[op]], start, end)

    roles = tuple(dict.fromkeys(links.roles.values()))
    threads, inverse = np.unique(rank.thread[ops], return_inverse=True)
    codes = [roles.index(links.roles[thread]) for thread in threads.tolist()]
    role_of_op = np.array(codes, np.int32)[inverse]
    thread = role_of_op[op]
    blocking = waits_in_thread(rank, rank.thread[ops[op]], start, end)
    handed_over = np.zeros(len(op), bool)
    if MAIN_THREAD in roles:
        gap = np.flatnonzero((kind == CODE[T1]) & (thread == roles.index(MAIN_THREAD)))
        apart = inside & (role_of_op != roles.index(MAIN_THREAD))
        backward = apart & rank.name_matches(BACKWARD_OP)[ops]
        named = apart & (np.array(roles)[role_of_op] == AUTOGRAD_THREAD)
        handed_over[gap] = _beside(rank, start[gap], end[gap], ops[backward | named])
        blocking[gap] |= _beside(rank, start[gap], end[gap], ops[named])
    return Samples(
        where=rank.where,
        rank=rank.rank,
        devices=tuple(device.name for device in rank.devices),
        profiler_us_per_event=profiler_us_per_event,
        names=tuple(rank.strings.texts),
        threads=roles,
        steps=links.steps.names,
        type=kind,
        thread=thread,
        op=rank.name[ops[op]],
        call=call,
        step=step[op].astype(np.int32),
        start_us=start,
        end_us=end,
        value_us=np.maximum(value, 0.0),
        blocking=blocking,
        handed_over=handed_over,
    )


def _beside(rank: RankTrace, start: Floats, end: Floats, ops: Ints) -> Mask:
    """Which intervals overlap any of these operators."""
    work = np.sort(ops)
    return overlaps(start, end, rank.start_us[work], rank.end_us[work])


Part = tuple[Ints, Floats, Floats]
"""Operator (an index into `links.top_ops`), start and end of each sample of one type."""


def _intervals(
    rank: RankTrace, links: Links, step: Ints, inside: Mask
) -> tuple[dict[str, Part], Ints]:
    """The samples of each type; rows of the launch calls of operators, by thread, then time."""
    thread = rank.thread[links.top_ops]
    follows = inside[:-1] & inside[1:] & (step[:-1] == step[1:]) & (thread[:-1] == thread[1:])
    after = np.flatnonzero(follows) + 1
    kept = np.flatnonzero(links.launch_op >= 0)
    kept = kept[inside[links.launch_op[kept]]]
    owner, launches = links.launch_op[kept], links.launches[kept]
    left = np.flatnonzero(owner[1:] == owner[:-1])
    first = np.sort(np.unique(owner, return_index=True)[1])
    launching = owner[first]
    is_silent = inside.copy()
    is_silent[owner] = False
    silent = np.flatnonzero(is_silent)
    # an operator that outlives its caller leaves both outermost: it ends where the next begins
    begun, ended = rank.start_us[links.top_ops], rank.end_us[links.top_ops].copy()
    same = np.flatnonzero(thread[1:] == thread[:-1])
    ended[same] = np.minimum(ended[same], begun[same + 1])
    called, returned = rank.start_us[launches], rank.end_us[launches]
    last = np.maximum.reduceat(returned, first) if len(first) else returned
    return {
        T1: (after, ended[after - 1], begun[after]),
        T2: (launching, begun[launching], called[first]),
        T3: (launching, last, ended[launching]),
        T4: (owner, called, np.minimum(returned, ended[owner])),
        T5: (owner[left], returned[left], called[left + 1]),
        OP_WITHOUT_LAUNCH: (silent, begun[silent], ended[silent]),
    }, launches


_RECORDED = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)


def _recorded(
    rank: RankTrace, kind: NDArray[np.int8], thread: Ints, start: Floats, end: Floats
) -> Ints:
    """Events whose recording each sample paid for: those that begin on its thread within it, but
    for the operator that it begins with; of a gap also the operator behind, of a call the call."""
    rows = by_thread(rank, rank.of(*_RECORDED))
    count = np.zeros(len(start), np.int64)
    for low, high in equal_runs(rank.thread[rows]):
        begun = rank.start_us[rows[low:high]]
        mine = np.flatnonzero(thread == rank.thread[rows[low]])
        count[mine] = np.searchsorted(begun, end[mine]) - np.searchsorted(begun, start[mine])
    count[np.isin(kind, (CODE[T2], CODE[OP_WITHOUT_LAUNCH]))] -= 1
    count[kind == CODE[T1]] += 1
    count[kind == CODE[T4]] = 1
    return np.maximum(count, 0)
