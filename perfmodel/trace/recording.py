"""Does what a trace says hold together: types, ranks, nesting, lost events, clocks?

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened. No real file at hand breaks these rules within the tolerances, so they warn of damage.

A profiler that loses buffers, or whose device clock is off, writes events that are each plausible.
It shows in when operations begin after their launch calls, and when calls that wait for the device
return. In the 31 recordings of GPUs at hand no operation begins more than 50 us before its launch
call or ends more than 12 us after a call that waited for it, and of the launches before the last
one whose kernel was recorded, none lacks its kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, is_among
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    DEVICE_WAIT_CALL,
    GRAPH_LAUNCH_CALL,
    KERNEL_LAUNCH_CALL,
    LAUNCH_CALL,
    STEP_NAME,
    SYNC_CALL,
    Category,
)
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.impossible_times import OVERLAP_US as DEVICE_OVERLAP_US
from perfmodel.trace.impossible_times import endless, without_overlong
from perfmodel.trace.link import crossing_at, crossings_us, equal_runs, stream_keys
from perfmodel.trace.window import find_steps, take_rows

CLOCK_TOLERANCE_US = 100.0
"""How far the clocks of host and device may be apart before it is said. Real files: up to 50."""
LONGEST_LAUNCH_US = 1e5
"""Where every operation begins later than this after its launch call, it is said."""
OUTSIDE_STEPS_FRAC = 0.1
"""How much of the device's time may be launched before the first step or after the last. Real
files: below 0.01."""
USUAL_LAUNCH_US = 10.0
"""From a launch call to its kernel where the device is idle; what a repaired clock is set to."""
_TO_HOST = re.compile(r"DtoH|DeviceToHost|Device -> Host", re.I)


@dataclass(frozen=True)
class _Launched:
    """Operations of the device and the calls that launched them, a pair per row."""

    calls: Ints
    """All launch calls with a correlation, by correlation."""
    all_work: Ints
    """All operations with a correlation."""
    is_launched: Mask
    """Which of those have their call in the file."""
    work: Ints
    call: Ints


def checked_recording(rank: RankTrace) -> tuple[RankTrace, list[str]]:
    """`rank` and a line per fault; its device's clock is set right where one shift explains it all.

    Where no shift does, nothing is changed and the fault is only said.
    """
    rank, faults = without_overlong(rank)
    faults = [*endless(rank), *faults]
    launched = _launched(rank)
    if not len(launched.work):
        return rank, [*faults, *_untied(rank)]
    late_us, clock_faults = _device_clock_late_us(rank, launched)
    if late_us:
        rank = _with_earlier_device(rank, late_us)
    return rank, [
        *faults,
        *clock_faults,
        *_lost_kernels(rank),
        *_references(rank, launched),
        *_calls(rank, launched),
    ]


def _untied(rank: RankTrace) -> Iterator[str]:
    """Where no operation has its launch call in the file: what of the two is missing."""
    work, calls = int(rank.is_device.sum()), rank.of(Category.RUNTIME)
    launching = rank.name_matches(KERNEL_LAUNCH_CALL) | rank.name_matches(GRAPH_LAUNCH_CALL)
    launches = int(launching[calls].sum())
    if work and (launches or len(rank.of(Category.CPU_OP))):
        yield f"none of the {work} device operations has its launch call in the file"
    elif launches and not work:
        yield f"{launches} kernel launches, but no device operation is in the file"


def _launched(rank: RankTrace) -> _Launched:
    runtime = rank.of(Category.RUNTIME)
    calls = runtime[rank.name_matches(LAUNCH_CALL)[runtime]]
    calls = calls[rank.correlation[calls] > 0]
    calls = calls[np.argsort(rank.correlation[calls], kind="stable")]
    work = np.flatnonzero(rank.is_device & (rank.correlation > 0))
    if not len(calls):
        return _Launched(calls, work, np.zeros(len(work), np.bool_), calls, calls)
    at = np.searchsorted(rank.correlation[calls], rank.correlation[work])
    call = calls[np.minimum(at, len(calls) - 1)]
    is_launched = rank.correlation[call] == rank.correlation[work]
    return _Launched(calls, work, is_launched, work[is_launched], call[is_launched])


def lost_launches(rank: RankTrace) -> tuple[int, int]:
    """How many kernel launches lack their kernel, and of how many that must have one.

    Those are the ones up to the last that has its own or that a call waited for; without any
    operation of the device, all.
    """
    launched = _launched(rank)
    one_kernel = launched.calls[rank.name_matches(KERNEL_LAUNCH_CALL)[launched.calls]]
    if not rank.is_device.any():
        return len(one_kernel), len(one_kernel)
    waits = rank.of(Category.RUNTIME)
    waits = waits[rank.name_matches(DEVICE_WAIT_CALL)[waits]]
    certain_us = rank.start_us[np.concatenate([launched.call, waits])].max(initial=-np.inf)
    earlier = one_kernel[rank.start_us[one_kernel] <= certain_us]
    has_work = is_among(rank.correlation[earlier], rank.correlation[rank.is_device])
    return int((~has_work).sum()), len(earlier)


def _lost_kernels(rank: RankTrace) -> list[str]:
    lost, of = lost_launches(rank)
    text = f"{lost} of {of} kernel launches have no kernel in the file (lost buffers?)"
    return [f"{text}: device time is missing"] if lost else []


def _references(rank: RankTrace, launched: _Launched) -> Iterator[str]:
    """What launch calls cannot have launched as the file says."""
    alone = rank.name_matches(KERNEL_LAUNCH_CALL)[launched.call]
    alone &= rank.category[launched.work] == Category.KERNEL
    repeated = int(alone.sum()) - len(distinct(launched.call[alone]))
    if repeated:
        yield f"{repeated} kernels share the launch call of another"
    keys = stream_keys(rank, launched.all_work)
    order = np.argsort(keys, kind="stable")
    missing = 0
    for low, high in equal_runs(keys[order]):
        has_call = launched.is_launched[order[low:high]]
        missing += int((~has_call & np.logical_or.accumulate(has_call)).sum())
    if missing:
        yield (
            f"{missing} device operations name a launch call that is not in the file, "
            "though earlier ones of their stream have theirs"
        )
    untied = int((rank.is_device & ((rank.correlation <= 0) | (rank.stream < 0))).sum())
    if untied:
        yield f"{untied} device operations name no launch call or no stream, though others do"
    nowhere = int((rank.device[rank.is_device] < 0).sum())
    if 0 < nowhere < rank.is_device.sum():
        yield f"{nowhere} device operations name no device, though others do"
    yield from _order(rank, launched)


def _calls(rank: RankTrace, launched: _Launched) -> Iterator[str]:
    """Calls that launched something and should not have: by their name, or by when they were."""
    calls = rank.of(Category.RUNTIME)
    calls = calls[~rank.name_matches(LAUNCH_CALL)[calls]]
    alone = rank.correlation[launched.all_work[~launched.is_launched]]
    odd = calls[is_among(rank.correlation[calls], alone)]
    if len(odd):
        yield (
            f"{len(odd)} calls launched operations of the device, though calls of their name are "
            f"not known to: {rank.text(odd[0])[:60]}"
        )
    steps = find_steps(rank)
    called_us, took_us = rank.start_us[launched.call], rank.duration_us[launched.work]
    is_out = (called_us < steps.start_us[0]) | (called_us > steps.end_us[-1])
    if took_us[is_out].sum() > OUTSIDE_STEPS_FRAC * took_us.sum():
        count = int(is_out.sum())
        yield f"{count} of {len(is_out)} device operations were launched outside all steps"


def _order(rank: RankTrace, launched: _Launched) -> Iterator[str]:
    """A stream runs its operations in the order in which they were launched."""
    keys = stream_keys(rank, launched.work)
    order = np.argsort(keys, kind="stable")
    before, call = launched.call[order[:-1]], launched.call[order[1:]]
    is_back = (keys[order[:-1]] == keys[order[1:]]) & (before != call)
    is_back &= rank.end_us[call] < rank.start_us[before]
    if is_back.any():
        yield (
            f"{int(is_back.sum())} device operations begin before one of their stream that was "
            "launched earlier"
        )


def _device_clock_late_us(rank: RankTrace, launched: _Launched) -> tuple[float, list[str]]:
    """What to take from the device's times (negative: it is early); 0 where that is not certain.

    A shift is possible while no operation begins before its launch call and none ends after a call
    that waited for it, within the tolerance.
    """
    delay_us = float((rank.start_us[launched.work] - rank.start_us[launched.call]).min())
    overrun_us = _overruns_us(rank, launched)
    is_broken = overrun_us > CLOCK_TOLERANCE_US
    worst_us = float(overrun_us.max()) if len(overrun_us) else -np.inf
    if -CLOCK_TOLERANCE_US <= delay_us < LONGEST_LAUNCH_US and not is_broken.any():
        return 0.0, []
    shift_us = max(delay_us - USUAL_LAUNCH_US, worst_us)
    fits = len(overrun_us) > 0 and worst_us <= delay_us + CLOCK_TOLERANCE_US
    if fits and (delay_us < 0 or 2 * is_broken.sum() >= len(overrun_us)):
        side = "late" if shift_us > 0 else "early"
        return shift_us, [
            f"the device's clock is {abs(shift_us) / 1e3:.3f} ms {side} against the host's: "
            "its operations were shifted"
        ]
    if is_broken.any():
        return 0.0, [
            f"{int(is_broken.sum())} of {len(overrun_us)} calls that wait for the device return "
            f"before what they wait for ends (by up to {worst_us:.1f} us): do the clocks of host "
            "and device drift apart?"
        ]
    if delay_us >= LONGEST_LAUNCH_US:
        return 0.0, [
            f"every device operation begins {delay_us / 1e3:.1f} ms or more after its launch call: "
            "is the device's clock late?"
        ]
    lead_us = rank.start_us[launched.call] - rank.start_us[launched.work]
    return 0.0, [
        f"{int((lead_us > CLOCK_TOLERANCE_US).sum())} device operations begin before their launch "
        f"call (by up to {lead_us.max():.1f} us)"
    ]


def _overruns_us(rank: RankTrace, launched: _Launched) -> Floats:
    """Per call that waits for the device: how much later than its return the awaited work ends.

    Of calls that wait for a stream, those right after a copy to the host on the same thread. Calls
    that wait for a device count where the rank uses one device only.
    """
    runtime = rank.of(Category.RUNTIME)
    waits = runtime[rank.name_matches(SYNC_CALL)[runtime]]
    is_device_wide = rank.name_matches(DEVICE_WAIT_CALL)[waits]
    call, end_us = launched.call, rank.end_us[launched.work]
    overruns: list[Floats] = []
    if rank.device[launched.work].min() == rank.device[launched.work].max():
        order = np.argsort(rank.end_us[call], kind="stable")
        latest_us = np.maximum.accumulate(end_us[order])
        device_wide = waits[is_device_wide]
        last = np.searchsorted(rank.end_us[call][order], rank.start_us[device_wide]) - 1
        overruns.append(latest_us[last[last >= 0]] - rank.end_us[device_wide[last >= 0]])
    of_stream = waits[~is_device_wide]
    is_copy = rank.name_contains(_TO_HOST)[launched.work]
    for thread in distinct(rank.thread[of_stream]).tolist():
        on_thread = np.flatnonzero(rank.thread[call] == thread)
        if not len(on_thread):
            continue
        on_thread = on_thread[np.argsort(rank.start_us[call[on_thread]], kind="stable")]
        here = of_stream[rank.thread[of_stream] == thread]
        last = np.searchsorted(rank.start_us[call[on_thread]], rank.start_us[here]) - 1
        here, pair = here[last >= 0], on_thread[last[last >= 0]]
        waited = is_copy[pair]
        overruns.append(end_us[pair[waited]] - rank.end_us[here[waited]])
    return np.concatenate(overruns) if overruns else np.zeros(0)


def _with_earlier_device(rank: RankTrace, shift_us: float) -> RankTrace:
    is_moved = rank.is_device | (rank.category == Category.GPU_ANNOTATION)
    start_us = np.where(is_moved, rank.start_us - shift_us, rank.start_us)
    first_us = min(float(start_us.min()), 0.0)
    shifted = replace(
        rank, start_us=start_us - first_us, origin_ns=rank.origin_ns + round(first_us * 1e3)
    )
    order = np.lexsort((-shifted.duration_us, shifted.start_us))
    return take_rows(shifted, order)


OVERLAP_US = 3.0
"""What neighbours may overlap by in files of whole microseconds."""
ROUNDING_US = 1e-3
"""Times are whole nanoseconds."""
PYTHON_OVERLAP_US, CALL_OVERLAP_US = 1e3, 1e4
"""What Python functions and calls may end after the annotations and operators that they begin in:
recorders of their own, on other clocks; real files: 0.2 and 2.5 ms. Among themselves a thread's
functions are a stack and its calls return in turn: real files cross by less than 0.001 us."""
MAX_RANK = 2**31 - 1
_LISTS = {
    "input_shapes": "Input Dims",
    "input_dtypes": "Input type",
    "input_values": "Concrete Inputs",
    "input_strides": "Input Strides",
    "grid": "grid",
}
_LIST_STARTS = ("[", '"[')
"""A list, or the text of one."""


_NO_TEXT = '""'
_TEXT_OF_SIZES = re.compile(r'"(\d+(,\d+)*)?(;(\d+(,\d+)*)?)*"')
"""Sizes as Ascend's PyTorch writes them: `"64,8;8,2"`; then types are `"float;float"`."""


def check_types(rank: RankTrace) -> None:
    """Raise `TraceError`, naming event and field, where a list of arguments is no list; the texts
    of Ascend's PyTorch become lists."""
    known_as_text = False
    for column, key in _LISTS.items():
        values = getattr(rank, column)
        used = np.zeros(len(rank.strings) + 1, np.bool_)
        used[values] = True
        for text in np.flatnonzero(used[:-1]).tolist():
            parts = rank.strings[text].strip('"').split(";")
            if rank.strings[text] == _NO_TEXT:
                values[values == text] = NONE
            elif column == "input_shapes" and _TEXT_OF_SIZES.fullmatch(rank.strings[text]):
                sizes = [[int(size) for size in part.split(",") if size] for part in parts]
                rank.strings.texts[text], known_as_text = json.dumps(sizes), True
            elif column == "input_dtypes" and known_as_text and "[" not in rank.strings[text]:
                rank.strings.texts[text] = json.dumps(parts)
            elif not rank.strings[text].startswith(_LIST_STARTS):
                event = int(rank.file_index[np.argmax(values == text)])
                raise TraceError(
                    f"{rank.where}: damaged trace: Expected a list, found "
                    f"{rank.strings[text][:30]} - at traceEvents[{event}].args.{key}"
                )


def check_rank(rank: RankTrace) -> None:
    """Raise `TraceError` where the file's rank is none of its job's ranks."""
    size = rank.world_size
    if size is not None and size < 1:
        raise TraceError(f"{rank.where}: distributedInfo: world_size {size}: below 1")
    if rank.rank < 0 or (size is not None and rank.rank >= size):
        raise TraceError(f"{rank.where}: distributedInfo: rank {rank.rank} of {size} ranks")
    if rank.rank > MAX_RANK:
        raise TraceError(f"{rank.where}: distributedInfo: rank {rank.rank}: above {MAX_RANK}")


def inconsistencies(rank: RankTrace) -> Iterator[str]:
    """What in the events of one rank cannot have happened as recorded; one line per rule."""
    steps = find_steps(rank)
    late_us = steps.end_us[:-1] - steps.start_us[1:]
    yield from _count_beyond(late_us, OVERLAP_US, "steps begin before the one before ended")
    yield from _crossings(rank)
    rows = np.flatnonzero(rank.is_device)
    keys = stream_keys(rank, rows)
    order = np.argsort(keys, kind="stable")
    yield from _count_beyond(
        _overlaps(rank, rows[order], keys[order], apart=rank.correlation[rows[order]]),
        DEVICE_OVERLAP_US,
        "device operations begin before the one before them on their stream ended",
    )


def _crossings(rank: RankTrace) -> Iterator[str]:
    host = (Category.CPU_OP, Category.ANNOTATION)
    python, calls = (Category.PYTHON,), (Category.RUNTIME,)
    every_us, is_near = crossing_at(rank, rank.of(*host, *python, *calls), ROUNDING_US)
    if not is_near.any():
        return  # then no fewer of them cross either
    is_step = rank.name_matches(STEP_NAME) & rank.is_of(host)
    of_steps = np.flatnonzero(is_step | (rank.category == Category.RUNTIME))
    for among, tolerance_us, what in (
        (rank.of(*host), OVERLAP_US, "operators or annotations"),
        (rank.of(*python), OVERLAP_US, "Python functions"),
        (rank.of(*calls), OVERLAP_US, "calls"),
        (of_steps, CLOCK_TOLERANCE_US, "calls, or the steps that they are within,"),
        (rank.of(*host, *python), PYTHON_OVERLAP_US, "Python functions, or what they are within,"),
    ):
        near_us = crossings_us(rank, among[is_near[among]])
        yield from _count_beyond(near_us, tolerance_us, f"{what} {_CROSSES}")
    every = "calls, or what they are within,"
    yield from _count_beyond(every_us, CALL_OVERLAP_US, f"{every} {_CROSSES}")


_CROSSES = "begin within another event of their thread and end after it"


def _overlaps(rank: RankTrace, rows: Ints, keys: Ints, apart: Ints | None = None) -> Floats:
    """Of neighbours of the same key: how long the later begins before the latest end so far.

    Where both have one value of `apart`, they may overlap, and nothing is said of them.
    """
    result = [np.zeros(0)]
    for low, high in equal_runs(keys):
        end_us = rank.end_us[rows[low : high - 1]]
        latest = np.maximum.accumulate(end_us)
        overlap_us = latest - rank.start_us[rows[low + 1 : high]]
        if apart is not None:
            last = np.maximum.accumulate(np.where(end_us == latest, np.arange(len(end_us)), 0))
            together = apart[low:high][last] == apart[low + 1 : high]
            overlap_us = overlap_us[~together | (apart[low + 1 : high] <= 0)]
        result.append(overlap_us)
    return np.concatenate(result)


def _count_beyond(excess_us: Floats, tolerance_us: float, what: str) -> Iterator[str]:
    count = int((excess_us > tolerance_us).sum())
    if count:
        yield f"{count} {what} (by up to {excess_us.max():.1f} us)"
