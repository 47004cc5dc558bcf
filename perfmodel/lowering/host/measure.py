"""T1 to T5 and operators without launches, measured on one rank's events, waiting left out.

Recording one costs the host time that a run without the profiler does not spend.
Source: Lin et al. 2022, section IV-C, and the published code's `CPU_EVENT_OVERHEAD` (2 us).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def blocking_calls(rank: RankTrace) -> Ints:
    """Rows of synchronising calls and of copy calls above 50 us, by thread, then time."""
    calls = rank.of(Category.RUNTIME)
    long_copy = rank.name_matches(COPY_CALL)[calls] & (rank.duration_us[calls] > LONG_COPY_US)
    return by_thread(rank, calls[rank.name_matches(SYNC_CALL)[calls] | long_copy])


def waits_in_thread(rank: RankTrace, thread: Ints, start_us: Floats, end_us: Floats) -> Mask:
    """Which intervals of host time overlap a blocking call of their own thread (by its id)."""
    calls = blocking_calls(rank)
    waits = np.zeros(len(start_us), bool)
    for low, high in equal_runs(rank.thread[calls]):
        rows = calls[low:high]
        mine = np.flatnonzero(thread == rank.thread[rows[0]])
        waits[mine] = overlaps(start_us[mine], end_us[mine], rank.start_us[rows], rank.end_us[rows])
    return waits


_RECORDED = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)


class SubEvents:
    """Positions of one rank's host events on their threads, to count those in between."""

    def __init__(self, rank: RankTrace, ops: Ints) -> None:
        """`ops`: rows of the outermost operators, by thread, then time."""
        rows = by_thread(rank, rank.of(*_RECORDED))
        self._at = np.full(len(rank), NONE, np.int64)
        self._at[rows] = np.arange(len(rows))
        self._ops = ops
        self._past = self._first_after(rank, rows)

    def _first_after(self, rank: RankTrace, rows: Ints) -> Ints:
        """Per operator: position of the first event that begins after it, or with the next."""
        past = np.zeros(len(self._ops), np.int64)
        spans = {
            int(rank.thread[rows[low]]): (low, high) for low, high in equal_runs(rank.thread[rows])
        }
        for low, high in equal_runs(rank.thread[self._ops]):
            ops = self._ops[low:high]
            first, last = spans[int(rank.thread[ops[0]])]
            starts = rank.start_us[rows[first:last]]
            past[low:high] = first + np.searchsorted(starts, rank.end_us[ops], side="left")
            past[low : high - 1] = np.minimum(past[low : high - 1], self._at[ops[1:]])
        count: Ints = np.maximum(past, self._at[self._ops] + 1)
        return count

    def between(self, first_row: Ints, second_row: Ints) -> Ints:
        """Events that begin after that of `first_row` and before that of `second_row`."""
        return np.asarray(np.maximum(self._at[second_row] - self._at[first_row] - 1, 0))

    def rest_of_op(self, op: Ints, row: Ints) -> Ints:
        """Events in operator `op` (an index into `ops`) that begin after that of `row`."""
        return np.asarray(np.maximum(self._past[op] - self._at[row] - 1, 0))

    def gap(self, op: Ints, next_op: Ints) -> Ints:
        """Events between the end of operator `op` and the start of `next_op` on its thread."""
        return np.asarray(np.maximum(self._at[self._ops[next_op]] - self._past[op], 0))


@dataclass(frozen=True)
class _Found:
    """Indices of what one rank's samples lie between.

    Operators are indices into `links.top_ops`, calls are rows.
    """

    after: Ints
    """Operators that follow another on their thread within one step."""
    launches: Ints
    """Launch calls of operators, by thread, then time."""
    owner: Ints
    """Per launch: its operator."""
    left: Ints
    """Launches (indices) that the next one follows in the same operator."""
    first: Ints
    """Per launching operator: its first launch (index), `last` its last."""
    last: Ints
    silent: Ints
    """Operators that launch nothing."""


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
    inside = _inside(rank, links, step)
    intervals = _find(rank, links, step, inside)
    kind, op, start, end = _intervals(rank, links, intervals)
    call = np.full(len(op), NONE, np.int32)
    call[kind == CODE[T4]] = rank.name[intervals.launches]
    value = end - start
    if profiler_us_per_event:
        value -= profiler_us_per_event * _recorded(rank, links, intervals)

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


def _inside(rank: RankTrace, links: Links, step: Ints) -> Mask:
    """Which top-level ops start between the first step's start and the last step's end."""
    if links.steps.is_window or not len(links.steps):
        return step >= 0
    inside: Mask = (step >= 0) & (rank.start_us[links.top_ops] < links.steps.end_us.max())
    return inside


def _find(rank: RankTrace, links: Links, step: Ints, inside: Mask) -> _Found:
    thread = rank.thread[links.top_ops]
    follows = inside[:-1] & inside[1:] & (step[:-1] == step[1:]) & (thread[:-1] == thread[1:])
    kept = np.flatnonzero(links.launch_op >= 0)
    kept = kept[inside[links.launch_op[kept]]]
    owner = links.launch_op[kept]
    same = owner[1:] == owner[:-1]
    ends = np.ones(min(len(owner), 1), bool)
    first = np.flatnonzero(np.concatenate([ends, ~same]))
    silent = inside.copy()
    silent[owner] = False
    return _Found(
        after=np.flatnonzero(follows) + 1,
        launches=links.launches[kept],
        owner=owner,
        left=np.flatnonzero(same),
        first=first,
        last=np.flatnonzero(np.concatenate([~same, ends])),
        silent=np.flatnonzero(silent),
    )


def _intervals(
    rank: RankTrace, links: Links, intervals: _Found
) -> tuple[NDArray[np.int8], Ints, Floats, Floats]:
    """Type code, operator, start and end of every sample, type after type."""
    op_start, op_end = rank.start_us[links.top_ops], _cut_ends_us(rank, links.top_ops)
    call_start, call_end = rank.start_us[intervals.launches], rank.end_us[intervals.launches]
    launching, left = intervals.owner[intervals.first], intervals.left
    last_end = np.maximum.reduceat(call_end, intervals.first) if len(intervals.first) else call_end
    parts = {
        T1: (intervals.after, op_end[intervals.after - 1], op_start[intervals.after]),
        T2: (launching, op_start[launching], call_start[intervals.first]),
        T3: (launching, last_end, op_end[launching]),
        T4: (intervals.owner, call_start, np.minimum(call_end, op_end[intervals.owner])),
        T5: (intervals.owner[left], call_end[left], call_start[left + 1]),
        OP_WITHOUT_LAUNCH: (intervals.silent, op_start[intervals.silent], op_end[intervals.silent]),
    }
    op, start, end = (np.concatenate([parts[name][i] for name in TYPES]) for i in range(3))
    sizes = [len(parts[name][0]) for name in TYPES]
    return np.repeat(np.arange(len(TYPES), dtype=np.int8), sizes), op.astype(np.int32), start, end


def _cut_ends_us(rank: RankTrace, ops: Ints) -> Floats:
    """Ends of outermost operators, none after the start of the next one on its thread: one that
    outlives its caller leaves both outermost, and a thread does one thing at a time."""
    end: Floats = rank.end_us[ops].copy()
    same = np.flatnonzero(rank.thread[ops[1:]] == rank.thread[ops[:-1]])
    end[same] = np.minimum(end[same], rank.start_us[ops[same + 1]])
    return end


def _recorded(rank: RankTrace, links: Links, intervals: _Found) -> Ints:
    """Events whose recording each sample paid for, in the order of `_intervals`."""
    ops, launches = links.top_ops, intervals.launches
    launching = intervals.owner[intervals.first]
    count = SubEvents(rank, ops)
    parts = {
        T1: count.gap(intervals.after - 1, intervals.after) + 1,
        T2: count.between(ops[launching], launches[intervals.first]),
        T3: count.rest_of_op(launching, launches[intervals.last]),
        T4: np.ones(len(launches), np.int64),
        T5: count.between(launches[intervals.left], launches[intervals.left + 1]),
        OP_WITHOUT_LAUNCH: count.rest_of_op(intervals.silent, ops[intervals.silent]),
    }
    return np.concatenate([parts[name] for name in TYPES])
