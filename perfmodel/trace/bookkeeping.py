"""Is all there that the profiler numbered, once, in its order, to its end, and in microseconds?

PyTorch's profiler numbers what it records on the host (`Ev Idx`, `External id`) in order of start,
numbers steps one after another, and notes its own time. Events that are missing, repeated, moved or
in another unit do not fit these books. In all whole files at hand `Ev Idx` runs from 0 without a
gap, no number comes twice or out of order on its thread, the last event ends less than 1 ms before
the profiler does, and a step begins less than 0.2 ms after the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfmodel.base.arrays import Ints, distinct, quantile
from perfmodel.trace.categories import KERNEL_LAUNCH_CALL, STEP_NAME, Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import equal_runs, stream_keys
from perfmodel.trace.recording import count_beyond, count_line
from perfmodel.trace.window import find_steps

MIN_NUMBERED = 8
"""Fewer say nothing."""
FEW = 3
"""Fewer may take no time in files of whole microseconds."""
SAMPLED_FRAC = 0.1
"""Files that hold less of what was numbered were sampled or filtered on purpose; real ones: 1 %."""
MIN_CUT, CUT_FRAC = 5, 0.2
"""Where so many names are as long as the longest, they were cut. Real files: 2, and less than a
twentieth of many."""
AT_ONCE_US = 1.0
"""Events of one thread that begin so close to one another may be in any order."""
STEP_GAP_US = 1e3
BEHIND_STEPS_US = 100.0
"""How long after the last step operators of its thread may begin. Real files: up to 35."""
END_GAP_US, END_GAP_FRAC = 2e3, 0.02
"""How long a recording may go on without an event: beyond both, its end is missing."""
SHORTEST_US, LONGEST_US = 0.1, 500.0
"""Of half the calls, operators and operations of the device, and of the quickest tenth of launch
calls and operators. Real files: medians from 1 us, tenths up to 30 us."""
MAX_BUSY = 10.0
"""How much longer operations of a stream may take than there is time; real files: 1.05."""
LATE_US, LATE_FRAC = 100.0, 0.03
"""How long after the profiler's own end events may end; real files: 1.7 % of its time."""
_CALL = re.compile(r"(cuda|hip|cu)[A-Z]\w*$")
_NUMBERS = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""What tells names apart that a program made (`triton_poi_fused_add_3`): they count once."""
_STEPS = (Category.CPU_OP, Category.ANNOTATION, Category.GPU_ANNOTATION)
_PROFILER = re.compile(r"PyTorch Profiler \(\d+\)$")


def bookkeeping_faults(rank: RankTrace, *, is_whole: bool = True) -> Iterator[str]:
    """A line per fault. Where only some steps were read (not `is_whole`), nothing is missing."""
    yield from _units(rank)
    yield from _names(rank)
    others = rank.memory.numbers
    numbers = rank.event_index[rank.event_index >= 0]
    known = distinct(numbers if others is None else np.concatenate([numbers, others]))
    expected = int(known[-1]) + 1 if len(known) and others is not None else 0
    if is_whole and len(known) >= SAMPLED_FRAC * expected:
        if len(known) < expected >= MIN_NUMBERED:
            yield (
                f"{expected - len(known)} of the {expected} events that the profiler numbered on "
                "the host are not in the file"
            )
        yield from _profiler_span(rank)
    if is_whole:
        yield from _after_the_last_step(rank)
    ops = rank.of(Category.CPU_OP)
    for number, key in ((rank.event_index, "Ev Idx"), (rank.external_id, "External id")):
        yield from _repeated(rank, ops[number[ops] >= 0], number, key)
    yield from _steps(rank)


def _names(rank: RankTrace) -> Iterator[str]:
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    is_step = rank.name_matches(STEP_NAME) & ~rank.is_of(_STEPS)
    misnamed = rank.name_matches(_CALL)[host].sum() + is_step.sum()
    yield from count_line(misnamed, "events have a name of another category (calls, steps)")
    unnamed = (~rank.name_contains(re.compile(r"\S"))).sum()
    yield from count_line(unnamed, "events have no name: what they are is not known")
    for rows in (host, rank.of(Category.RUNTIME), np.flatnonzero(rank.is_device)):
        names = {_NUMBERS.sub("0", rank.strings[name]) for name in distinct(rank.name[rows])}
        lengths = [len(name) for name in names]
        most = max(lengths, default=0)
        count = lengths.count(most)
        if count >= MIN_CUT and count > CUT_FRAC * len(lengths):
            yield f"{count} of {len(lengths)} names are {most} characters long: were they cut?"


def _repeated(rank: RankTrace, rows: Ints, number: Ints, key: str) -> Iterator[str]:
    """Operators whose number another has, and whose numbers do not ascend along their thread."""
    if len(rows) < MIN_NUMBERED:
        return
    twice = len(rows) - len(distinct(number[rows]))
    yield from count_line(twice, f"operators have the number ({key}) of another")
    rows = rows[np.argsort(rank.thread[rows], kind="stable")]
    is_back = rank.thread[rows[1:]] == rank.thread[rows[:-1]]
    is_back &= rank.start_us[rows[1:]] > rank.start_us[rows[:-1]] + AT_ONCE_US
    is_back &= number[rows[1:]] < number[rows[:-1]]
    yield from count_line(
        is_back.sum(),
        f"operators begin after one of their thread that the profiler numbered later ({key})",
    )


def _steps(rank: RankTrace) -> Iterator[str]:
    steps = find_steps(rank)
    ends = [re.search(r"\d{1,18}$", name) for name in steps.names]
    skipped = int((np.diff([int(end[0]) for end in ends if end]) != 1).sum())
    yield from count_line(skipped, "steps are not numbered one after another: are some missing?")
    gap_us = steps.start_us[1:] - steps.end_us[:-1]
    is_whole = all(STEP_NAME.match(name) for name in steps.names)  # other marks leave gaps
    if is_whole and not skipped:
        what = "steps begin long after the one before ended"
        yield from count_beyond(gap_us, STEP_GAP_US, what)


def _after_the_last_step(rank: RankTrace) -> Iterator[str]:
    """A profiler stops as its last step ends: what its thread goes on with is of that step."""
    host = rank.of(Category.ANNOTATION, Category.CPU_OP)
    steps = host[rank.name_matches(STEP_NAME)[host]]
    if not len(steps):
        return
    last = steps[-1]
    ops = host[(rank.thread[host] == rank.thread[last]) & (host != last)]
    behind_us = rank.start_us[ops] - rank.end_us[last]
    if behind_us.max(initial=0.0) > BEHIND_STEPS_US:
        yield (
            f"{(behind_us > 0.0).sum()} operators of the steps' thread begin after the last step "
            f"ended (up to {behind_us.max():.0f} us): was it cut short?"
        )


def _profiler_span(rank: RankTrace) -> Iterator[str]:
    """The profiler's own time, which it writes as an event, against the last event's end."""
    own = rank.of(Category.OTHER)
    own = own[rank.name_matches(_PROFILER)[own]]
    if not len(own) or len(own) == len(rank):
        return
    gap_us = float(rank.end_us[own].max() - np.delete(rank.end_us, own).max())
    length_us = float(rank.duration_us[own].max())
    if gap_us > max(END_GAP_US, END_GAP_FRAC * length_us):
        yield (
            f"nothing was recorded in the last {gap_us / 1e3:.1f} of the {length_us / 1e3:.1f} ms "
            "that the profiler ran: is the end missing?"
        )
    if -gap_us > max(LATE_US, LATE_FRAC * length_us):
        yield (
            f"events end {-gap_us / 1e3:.1f} ms after the profiler, which ran "
            f"{length_us / 1e3:.1f} ms: do clocks differ?"
        )


def _units(rank: RankTrace) -> Iterator[str]:
    """Calls, operators and kernels a thousand times too short or too long for microseconds."""
    asked = "are times microseconds?"
    calls = rank.of(Category.RUNTIME)
    launches = calls[rank.name_matches(KERNEL_LAUNCH_CALL)[calls]]
    ops, work = rank.of(Category.CPU_OP), np.flatnonzero(rank.is_device)
    for rows, what in ((launches, "launch calls"), (ops, "operators"), (work, "device operations")):
        if not len(rows):
            continue
        tenth_us, half_us = (quantile(rank.duration_us[rows], share) for share in (0.1, 0.5))
        if half_us < SHORTEST_US and len(rows) >= FEW:
            yield f"half of the {what} take less than {SHORTEST_US} us: {asked}"
        if len(rows) >= MIN_NUMBERED and tenth_us > LONGEST_US and rows is not work:
            yield f"nine in ten {what} take more than {LONGEST_US:.0f} us: {asked}"
    work = work[np.argsort(stream_keys(rank, work), kind="stable")]
    busiest = 0.0
    for low, high in equal_runs(stream_keys(rank, work)):
        span_us = max(float(np.ptp(rank.start_us[work[low:high]])), AT_ONCE_US)
        busiest = max(busiest, rank.duration_us[work[low : high - 1]].sum() / span_us)
    if busiest > MAX_BUSY:
        yield (
            f"operations of one stream take {busiest:.0f} times as long as from the first to the "
            f"last: {asked}"
        )
