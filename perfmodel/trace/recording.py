"""Does what a trace says hold together: ranks, nesting, lost events, clocks, units?

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened, and a profiler that loses buffers writes events that are each plausible. No real file at
hand breaks these rules within the tolerances, so they warn of damage: in the 31 recordings of GPUs
at hand, of the launches before the last one whose kernel was recorded, none lacks its kernel.

PyTorch's profiler numbers what it records on the host (`Ev Idx`): in all whole files at hand the
numbers run from 0 without a gap, once those of `[memory]` events are counted.
"""

from __future__ import annotations

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
    OVERLAP_US,
    Launched,
    launched_work,
    with_device_clock,
    without_overlong,
)
from perfmodel.trace.window import find_steps

OUTSIDE_STEPS_FRAC = 0.1
"""How much of the device's time may be launched before the first step or after the last. Real
files: below 0.01."""
ROUNDING_US = 3.0
"""What neighbours may overlap by in files of whole microseconds."""
MAX_RANK = 2**31 - 1
MIN_NUMBERED = 8
"""Fewer say nothing."""
FEW = 3
"""Fewer may take no time in files of whole microseconds."""
STEP_GAP_US = 500.0
"""Between two steps of PyTorch's profiler, either way. Real files: up to 130."""
SAMPLED_FRAC = 0.1
"""Files that hold less of what was numbered were sampled or filtered on purpose; real ones: 1 %."""
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


def checked_recording(rank: RankTrace, *, is_whole: bool = True) -> tuple[RankTrace, list[str]]:
    """`rank` and a line per fault; its device's clock is set right where one shift explains it all.

    Where no shift does, nothing is changed and the fault is only said. Where only some steps were
    read (not `is_whole`), no number of an event is missing.
    """
    rank, faults = without_overlong(rank)
    launched = launched_work(rank)
    if len(launched.work):
        rank, clock_faults = with_device_clock(rank, launched)
        if clock_faults:
            launched = launched_work(rank)
        faults = [*faults, *clock_faults, *_said(_launches(rank, launched))]
    else:  # what of the two is missing?
        work, calls = int(rank.is_device.sum()), rank.of(Category.RUNTIME)
        launching = rank.name_matches(KERNEL_LAUNCH_CALL) | rank.name_matches(GRAPH_LAUNCH_CALL)
        launches = int(launching[calls].sum())
        if work and (launches or len(rank.of(Category.CPU_OP))):
            faults.append(f"none of the {work} device operations has its launch call in the file")
        elif launches and not work:
            faults.append(f"{launches} kernel launches, but no device operation is in the file")
    return rank, [*faults, *_said(_order(rank)), *_units(rank), *_said(_numbers(rank, is_whole))]


Rules = Iterator[tuple[object, str]]
"""How many break a rule, and what is said of them behind that number."""


def _said(rules: Iterable[tuple[object, str]]) -> Iterator[str]:
    return (f"{number} {what}" for number, what in rules if number)


def lost_launches(rank: RankTrace) -> tuple[int, int]:
    """How many kernel launches lack their kernel, and of how many that must have one.

    Those are the ones up to the last that has its own or that a call waited for; without any
    operation of the device, all.
    """
    launched = launched_work(rank)
    one_kernel = launched.calls[rank.name_matches(KERNEL_LAUNCH_CALL)[launched.calls]]
    if not rank.is_device.any():
        return len(one_kernel), len(one_kernel)
    waits = rank.of(Category.RUNTIME, named=DEVICE_WAIT_CALL)
    certain_us = rank.start_us[np.concatenate([launched.call, waits])].max(initial=-np.inf)
    earlier = one_kernel[rank.start_us[one_kernel] <= certain_us]
    has_work = is_among(rank.correlation[earlier], rank.correlation[rank.is_device])
    return int((~has_work).sum()), len(earlier)


def _launches(rank: RankTrace, launched: Launched) -> Rules:
    """What launch calls cannot have launched as the file says, or should not have: by their name,
    or by when they were."""
    lost, of = lost_launches(rank)
    lacking = f"of {of} kernel launches have no kernel in the file (lost buffers?): device time is"
    yield lost, f"{lacking} missing"
    missing = 0
    for own in alike(stream_keys(rank, launched.all_work)):
        has_call = launched.is_launched[own]
        missing += int((~has_call & np.logical_or.accumulate(has_call)).sum())
    what = "name a launch call that is not in the file, though earlier ones of their stream have"
    yield missing, f"device operations {what} theirs"
    keys = stream_keys(rank, launched.work)
    order = np.argsort(keys, kind="stable")
    before, call = launched.call[order[:-1]], launched.call[order[1:]]
    is_back = (keys[order[:-1]] == keys[order[1:]]) & (before != call)
    is_back &= rank.end_us[call] < rank.start_us[before]
    what = "device operations begin before one of their stream that was launched earlier"
    yield is_back.sum(), what
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


def _order(rank: RankTrace) -> Rules:
    """Steps that are apart, events of a thread that cross, operations of a stream that overlap."""
    steps = find_steps(rank)
    if all(map(STEP_NAME.match, steps.names)):  # other marks leave gaps
        apart_us = np.abs(steps.start_us[1:] - steps.end_us[:-1])
        yield _beyond(apart_us, STEP_GAP_US, "steps do not begin where the one before ended")
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    crosses = "begin within another event of their thread and end after it"
    yield _beyond(crossings_us(rank, host), ROUNDING_US, f"operators or annotations {crosses}")
    rows, found = np.flatnonzero(rank.is_device), [np.zeros(0)]
    for own in alike(stream_keys(rank, rows)):
        # How long each begins before the latest end so far, unless both are of one launch.
        launch, end_us = rank.correlation[rows[own]], rank.end_us[rows[own[:-1]]]
        latest = np.maximum.accumulate(end_us)
        overlap_us = latest - rank.start_us[rows[own[1:]]]
        last = np.maximum.accumulate(np.where(end_us == latest, np.arange(len(end_us)), 0))
        found.append(overlap_us[(launch[last] != launch[1:]) | (launch[1:] <= 0)])
    what = "device operations begin before the one before them on their stream ended"
    yield _beyond(np.concatenate(found), OVERLAP_US, what)


def _beyond(excess_us: Floats, tolerance_us: float, what: str) -> tuple[int, str]:
    worst_us = excess_us.max(initial=0.0)
    return int((excess_us > tolerance_us).sum()), f"{what} (by up to {worst_us:.1f} us)"


def crossings_us(rank: RankTrace, rows: Ints) -> Floats:
    """By how much each of `rows` that begins within another of its thread and ends after it does
    both, whichever is less; below 0 for those that end within it."""
    around = enclosing(rank, rows)
    outer, inner = rows[around[around >= 0]], rows[around >= 0]
    start_us, end_us, until_us = rank.start_us[inner], rank.end_us[inner], rank.end_us[outer]
    result: Floats = np.minimum(until_us - start_us, end_us - until_us)
    return result


def _numbers(rank: RankTrace, is_whole: bool) -> Rules:
    """Numbers of the profiler that no event has."""
    others = rank.memory.numbers
    if others is None or not is_whole:
        return
    known = distinct(np.concatenate([rank.event_index[rank.event_index >= 0], others]))
    expected = int(known[-1]) + 1 if len(known) else 0
    if expected >= MIN_NUMBERED and len(known) >= SAMPLED_FRAC * expected:
        what = "events that the profiler numbered on the host are not in the file"
        yield expected - len(known), f"of the {expected} {what}"


def _units(rank: RankTrace) -> Iterator[str]:
    """Calls, operators and kernels a thousand times too short or too long for microseconds."""
    asked = "are times microseconds?"
    launches = rank.of(Category.RUNTIME, named=KERNEL_LAUNCH_CALL)
    ops, work = rank.of(Category.CPU_OP), np.flatnonzero(rank.is_device)
    for rows, what in ((launches, "launch calls"), (ops, "operators"), (work, "device operations")):
        if not len(rows):
            continue
        tenth_us, half_us = (quantile(rank.duration_us[rows], share) for share in (0.1, 0.5))
        if half_us < SHORTEST_US and len(rows) >= FEW:
            yield f"half of the {what} take less than {SHORTEST_US} us: {asked}"
        if len(rows) >= MIN_NUMBERED and tenth_us > LONGEST_US and rows is not work:
            yield f"nine in ten {what} take more than {LONGEST_US:.0f} us: {asked}"
