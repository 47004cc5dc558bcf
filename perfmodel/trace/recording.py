"""Does what a trace says hold together: ranks, nesting, lost events, the profiler's own numbers?

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened, and a profiler that loses buffers writes events that are each plausible. No real file at
hand breaks these rules within the tolerances, so they warn of damage: in the 31 recordings of GPUs
at hand, of the launches before the last one whose kernel was recorded, none lacks its kernel.

PyTorch's profiler numbers what it records on the host (`Ev Idx`, `External id`) in order of start,
and steps one after another: events that are missing, repeated or moved do not fit these books. In
all whole files at hand `Ev Idx` runs from 0 without a gap, no number comes twice or out of order on
its thread, and a step begins less than 0.2 ms after the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct, is_among, quantile
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    DEVICE_WAIT_CALL,
    GRAPH_LAUNCH_CALL,
    KERNEL_LAUNCH_CALL,
    LAUNCH_CALL,
    STEP_NAME,
    Category,
)
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import alike, enclosing, stream_keys
from perfmodel.trace.repairs import (
    CLOCK_TOLERANCE_US,
    Launched,
    launched_work,
    with_device_clock,
    without_overlong,
)
from perfmodel.trace.repairs import OVERLAP_US as DEVICE_OVERLAP_US
from perfmodel.trace.window import find_steps

OUTSIDE_STEPS_FRAC = 0.1
"""How much of the device's time may be launched before the first step or after the last. Real
files: below 0.01."""
OVERLAP_US = 3.0
"""What neighbours may overlap by in files of whole microseconds."""
ROUNDING_US = 1e-3
"""Times are whole nanoseconds."""
PYTHON_OVERLAP_US, CALL_OVERLAP_US = 1e3, 1e4
"""What Python functions and calls may end after the annotations and operators that they begin in:
recorders of their own, on other clocks; real files: 0.2 and 2.5 ms. Among themselves a thread's
functions are a stack and its calls return in turn: real files cross by less than 0.001 us."""
MAX_RANK = 2**31 - 1
HOUR_US = 3.6e9
MIN_NUMBERED = 8
"""Fewer say nothing."""
FEW = 3
"""Fewer may take no time in files of whole microseconds."""
SAMPLED_FRAC = 0.1
"""Files that hold less of what was numbered were sampled or filtered on purpose; real ones: 1 %."""
AT_ONCE_US = 1.0
"""Events of one thread that begin so close to one another may be in any order."""
STEP_GAP_US = 500.0
SHORTEST_US, LONGEST_US = 0.1, 500.0
"""Of half the calls, operators and operations of the device, and of the quickest tenth of launch
calls and operators. Real files: medians from 1 us, tenths up to 30 us."""


def check_rank(rank: RankTrace) -> None:
    """Raise `TraceError` where the file's rank is none of its job's ranks."""
    size, place = rank.world_size, f"{rank.where}: distributedInfo"
    if size is not None and size < 1:
        raise TraceError(f"{place}: world_size {size}: below 1")
    if rank.rank < 0 or (size is not None and rank.rank >= size):
        raise TraceError(f"{place}: rank {rank.rank} of {size} ranks")
    if rank.rank > MAX_RANK:
        raise TraceError(f"{place}: rank {rank.rank}: above {MAX_RANK}")


def checked_recording(rank: RankTrace) -> tuple[RankTrace, list[str]]:
    """`rank` and a line per fault; its device's clock is set right where one shift explains it all.

    Where no shift does, nothing is changed and the fault is only said.
    """
    rank, overlong = without_overlong(rank)
    faults = [*_said(_endless(rank)), *overlong]
    launched = launched_work(rank)
    if not len(launched.work):  # what of the two is missing?
        work, calls = int(rank.is_device.sum()), rank.of(Category.RUNTIME)
        launching = rank.name_matches(KERNEL_LAUNCH_CALL) | rank.name_matches(GRAPH_LAUNCH_CALL)
        launches = int(launching[calls].sum())
        if work and (launches or len(rank.of(Category.CPU_OP))):
            faults.append(f"none of the {work} device operations has its launch call in the file")
        elif launches and not work:
            faults.append(f"{launches} kernel launches, but no device operation is in the file")
        return rank, faults
    rank, clock_faults = with_device_clock(rank, launched)
    if clock_faults:
        launched = launched_work(rank)
    lost, of = lost_launches(rank)
    lacking = f"of {of} kernel launches have no kernel in the file (lost buffers?): device time is"
    rules = [(lost, f"{lacking} missing"), *_references(rank, launched), *_calls(rank, launched)]
    return rank, [*faults, *clock_faults, *_said(rules)]


Rules = Iterator[tuple[object, str]]
"""How many break a rule, and what is said of them behind that number."""


def _said(rules: Iterable[tuple[object, str]]) -> Iterator[str]:
    return (f"{number} {what}" for number, what in rules if number)


def _beyond(excess_us: Floats, tolerance_us: float, what: str) -> tuple[int, str]:
    worst_us = excess_us.max(initial=0.0)
    return int((excess_us > tolerance_us).sum()), f"{what} (by up to {worst_us:.1f} us)"


def lost_launches(rank: RankTrace) -> tuple[int, int]:
    """How many kernel launches lack their kernel, and of how many that must have one.

    Those are the ones up to the last that has its own or that a call waited for; without any
    operation of the device, all.
    """
    launched = launched_work(rank)
    one_kernel = launched.calls[rank.name_matches(KERNEL_LAUNCH_CALL)[launched.calls]]
    if not rank.is_device.any():
        return len(one_kernel), len(one_kernel)
    waits = rank.of(Category.RUNTIME)
    waits = waits[rank.name_matches(DEVICE_WAIT_CALL)[waits]]
    certain_us = rank.start_us[np.concatenate([launched.call, waits])].max(initial=-np.inf)
    earlier = one_kernel[rank.start_us[one_kernel] <= certain_us]
    has_work = is_among(rank.correlation[earlier], rank.correlation[rank.is_device])
    return int((~has_work).sum()), len(earlier)


def _references(rank: RankTrace, launched: Launched) -> Rules:
    """What launch calls cannot have launched as the file says."""
    alone = rank.name_matches(KERNEL_LAUNCH_CALL)[launched.call]
    alone &= rank.category[launched.work] == Category.KERNEL
    repeated = int(alone.sum()) - len(distinct(launched.call[alone]))
    yield repeated, "kernels share the launch call of another"
    missing = 0
    for own in alike(stream_keys(rank, launched.all_work)):
        has_call = launched.is_launched[own]
        missing += int((~has_call & np.logical_or.accumulate(has_call)).sum())
    what = "name a launch call that is not in the file, though earlier ones of their stream have"
    yield missing, f"device operations {what} theirs"
    untied = int((rank.is_device & ((rank.correlation <= 0) | (rank.stream < 0))).sum())
    yield untied, "device operations name no launch call or no stream, though others do"
    nowhere = int((rank.device[rank.is_device] < 0).sum())
    if nowhere < rank.is_device.sum():
        yield nowhere, "device operations name no device, though others do"
    keys = stream_keys(rank, launched.work)
    order = np.argsort(keys, kind="stable")
    before, call = launched.call[order[:-1]], launched.call[order[1:]]
    is_back = (keys[order[:-1]] == keys[order[1:]]) & (before != call)
    is_back &= rank.end_us[call] < rank.start_us[before]
    what = "device operations begin before one of their stream that was launched earlier"
    yield is_back.sum(), what


def _calls(rank: RankTrace, launched: Launched) -> Rules:
    """Calls that launched something and should not have: by their name, or by when they were."""
    calls = rank.of(Category.RUNTIME)
    calls = calls[~rank.name_matches(LAUNCH_CALL)[calls]]
    alone = rank.correlation[launched.all_work[~launched.is_launched]]
    odd = calls[is_among(rank.correlation[calls], alone)]
    for row in odd[:1]:
        what = "calls launched operations of the device, though calls of their name are not known"
        yield len(odd), f"{what} to: {rank.text(row)[:60]}"
    steps = find_steps(rank)
    called_us, took_us = rank.start_us[launched.call], rank.duration_us[launched.work]
    is_out = (called_us < steps.start_us[0]) | (called_us > steps.end_us[-1])
    if took_us[is_out].sum() > OUTSIDE_STEPS_FRAC * took_us.sum():
        yield is_out.sum(), f"of {len(is_out)} device operations were launched outside all steps"


def _endless(rank: RankTrace) -> Rules:
    """The first host event that lasts hours beyond the time in which all events begin."""
    span_us = float(np.ptp(rank.start_us)) if len(rank) else 0.0
    is_long = ~rank.is_device & (rank.duration_us > span_us + HOUR_US)
    for row in np.flatnonzero(is_long)[:1]:
        what = "hours more than the time in which all events begin: a damaged duration?"
        taken_s = rank.duration_us[row] / 1e6
        yield rank.text(row)[:60] or "an event", f"takes {taken_s:.3g} s, {what}"


def inconsistencies(rank: RankTrace) -> Iterator[str]:
    """What in the events of one rank cannot have happened as recorded; one line per rule."""
    return _said(_inconsistent(rank))


def _inconsistent(rank: RankTrace) -> Rules:
    steps = find_steps(rank)
    late_us = steps.end_us[:-1] - steps.start_us[1:]
    yield _beyond(late_us, OVERLAP_US, "steps begin before the one before ended")
    yield from _crossings(rank)
    rows, found = np.flatnonzero(rank.is_device), [np.zeros(0)]
    for own in alike(stream_keys(rank, rows)):
        # How long each begins before the latest end so far, unless both are of one launch.
        launch, end_us = rank.correlation[rows[own]], rank.end_us[rows[own[:-1]]]
        latest = np.maximum.accumulate(end_us)
        overlap_us = latest - rank.start_us[rows[own[1:]]]
        last = np.maximum.accumulate(np.where(end_us == latest, np.arange(len(end_us)), 0))
        found.append(overlap_us[(launch[last] != launch[1:]) | (launch[1:] <= 0)])
    what = "device operations begin before the one before them on their stream ended"
    yield _beyond(np.concatenate(found), DEVICE_OVERLAP_US, what)


def crossings_us(rank: RankTrace, rows: Ints) -> Floats:
    """By how much each of `rows` that begins within another of its thread and ends after it does
    both, whichever is less; below 0 for those that end within it."""
    around = enclosing(rank, rows)
    outer, inner = rows[around[around >= 0]], rows[around >= 0]
    start_us, end_us, until_us = rank.start_us[inner], rank.end_us[inner], rank.end_us[outer]
    result: Floats = np.minimum(until_us - start_us, end_us - until_us)
    return result


def _crossings(rank: RankTrace) -> Rules:
    host = (Category.CPU_OP, Category.ANNOTATION)
    python, calls = (Category.PYTHON,), (Category.RUNTIME,)
    every_us = crossings_us(rank, rank.of(*host, *python, *calls))
    if every_us.max(initial=0.0) <= ROUNDING_US:
        return  # then no fewer of them cross either
    crosses = "begin within another event of their thread and end after it"
    is_step = rank.name_matches(STEP_NAME) & rank.is_of(host)
    of_steps = np.flatnonzero(is_step | (rank.category == Category.RUNTIME))
    for among, tolerance_us, what in (
        (rank.of(*host), OVERLAP_US, "operators or annotations"),
        (rank.of(*python), OVERLAP_US, "Python functions"),
        (rank.of(*calls), OVERLAP_US, "calls"),
        (of_steps, CLOCK_TOLERANCE_US, "calls, or the steps that they are within,"),
        (rank.of(*host, *python), PYTHON_OVERLAP_US, "Python functions, or what they are within,"),
    ):
        yield _beyond(crossings_us(rank, among), tolerance_us, f"{what} {crosses}")
    yield _beyond(every_us, CALL_OVERLAP_US, f"calls, or what they are within, {crosses}")


def bookkeeping_faults(rank: RankTrace, *, is_whole: bool = True) -> Iterator[str]:
    """A line per fault. Where only some steps were read (not `is_whole`), nothing is missing."""
    yield from _units(rank)
    yield from _said(_numbered(rank, is_whole))


def _numbered(rank: RankTrace, is_whole: bool) -> Rules:
    others = rank.memory.numbers
    numbers = rank.event_index[rank.event_index >= 0]
    known = distinct(numbers if others is None else np.concatenate([numbers, others]))
    expected = int(known[-1]) + 1 if len(known) and others is not None else 0
    missing = expected - len(known)
    is_sampled = len(known) < SAMPLED_FRAC * expected
    if is_whole and expected >= MIN_NUMBERED and not is_sampled:
        what = "events that the profiler numbered on the host are not in the file"
        yield missing, f"of the {expected} {what}"
    ops = rank.of(Category.CPU_OP)
    for number, key in ((rank.event_index, "Ev Idx"), (rank.external_id, "External id")):
        yield from _repeated(rank, ops[number[ops] >= 0], number, key)
    yield from _steps(rank)


def _repeated(rank: RankTrace, rows: Ints, number: Ints, key: str) -> Rules:
    """Operators whose number another has, and whose numbers do not ascend along their thread."""
    if len(rows) < MIN_NUMBERED:
        return
    twice = len(rows) - len(distinct(number[rows]))
    yield twice, f"operators have the number ({key}) of another"
    rows = rows[np.argsort(rank.thread[rows], kind="stable")]
    is_back = rank.thread[rows[1:]] == rank.thread[rows[:-1]]
    is_back &= rank.start_us[rows[1:]] > rank.start_us[rows[:-1]] + AT_ONCE_US
    is_back &= number[rows[1:]] < number[rows[:-1]]
    what = "operators begin after one of their thread that the profiler numbered later"
    yield is_back.sum(), f"{what} ({key})"


def _steps(rank: RankTrace) -> Rules:
    steps = find_steps(rank)
    ends = [re.search(r"\d{1,18}$", name) for name in steps.names]
    skipped = int((np.diff([int(end[0]) for end in ends if end]) != 1).sum())
    yield skipped, "steps are not numbered one after another: are some missing?"
    gap_us = steps.start_us[1:] - steps.end_us[:-1]
    is_whole = all(STEP_NAME.match(name) for name in steps.names)  # other marks leave gaps
    if is_whole and not skipped:
        yield _beyond(gap_us, STEP_GAP_US, "steps begin long after the one before ended")


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
