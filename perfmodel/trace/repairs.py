"""Times that cannot be, and what is made of them: device operations that outlast their room, a
device's clock that is off; sizes that are texts; several processes in one file.

Profilers write such times where a buffer was lost or a counter overflowed: a kernel of a second
in a step of 10 ms. Operations of one stream may overlap a little (programmatic
dependent launch), hold others, and run with others of the same graph launch; what is far longer
than that is cut where the next one begins.

A device clock that is off shows in when operations begin after their launch calls, and when calls
that wait for the device return. In the 31 recordings of GPUs at hand no operation begins more than
50 us before its launch call or ends more than 12 us after a call that waited for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct
from perfmodel.errors import TraceError
from perfmodel.trace.categories import DEVICE_WAIT_CALL, LAUNCH_CALL, STEP_NAME, SYNC_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import by_correlation, calls_of, equal_runs, stream_keys
from perfmodel.trace.window import take_rows

OVERLAP_US = 25.0
"""What neighbours of a stream may overlap by. Real files: up to 13."""
MANY = 10
"""How much longer than its room, and than its like, what is cut is at least."""
LONG_US = 1e5
"""What an operation takes at least, beside so many times the whole recording, that is cut though
none of another launch follows."""
COVERED = 8
"""Successors that an operation without its like must run over to be cut."""
CLOCK_TOLERANCE_US = 100.0
"""How far the clocks of host and device may be apart before it is said. Real files: up to 50."""
LONGEST_LAUNCH_US = 1e5
"""Where every operation begins later than this after its launch call, it is said."""
USUAL_LAUNCH_US = 10.0
"""From a launch call to its kernel where the device is idle; what a repaired clock is set to."""
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
_TO_HOST = re.compile(r"DtoH|DeviceToHost|Device -> Host", re.I)


def without_overlong(rank: RankTrace) -> tuple[RankTrace, list[str]]:
    """`rank` with device operations that cannot have lasted so long cut short, and a line of it."""
    work = np.flatnonzero(rank.is_device)
    if not len(work):
        return rank, []
    work = work[np.argsort(stream_keys(rank, work), kind="stable")]
    start_us, took_us = rank.start_us[work], rank.duration_us[work]
    next_us, covered, is_inner = _successors(rank, work)
    room_us, is_last = next_us - start_us, np.isinf(next_us)
    is_long = (took_us - room_us > OVERLAP_US) & (took_us >= MANY * room_us)
    is_long |= is_last & (took_us > MANY * np.ptp(rank.start_us) + LONG_US)
    if not is_long.any():
        return rank, []
    others = np.ones(len(rank), np.bool_)
    others[work[is_long]] = False
    until_us = float(rank.end_us[others].max(initial=float(start_us.min())))
    usual_us, name = np.full(len(work), np.nan), rank.name[work]
    for each in np.unique(name[is_long]).tolist():  # the median of the sound ones of its name
        sound_us = took_us[(name == each) & ~is_long]
        if len(sound_us):
            usual_us[name == each] = np.median(sound_us)
    late_us = MANY * (until_us - float(rank.start_us[0])) + 1e6
    is_over = is_long & (
        (start_us + np.where(is_last, took_us - late_us, took_us / 2) > until_us)
        | (took_us >= MANY * usual_us)
        | (np.isnan(usual_us) & (covered >= COVERED))
    )
    if not is_over.any():
        return rank, []
    duration_us = rank.duration_us.copy()
    end_us = np.fmin(np.where(is_inner, start_us + usual_us, np.inf), next_us)
    end_us = np.where(np.isinf(end_us), np.maximum(until_us, start_us), end_us)
    duration_us[work[is_over]] = (end_us - start_us)[is_over]
    cut = replace(rank, duration_us=duration_us)
    return take_rows(cut, np.lexsort((-duration_us, rank.start_us))), [
        f"{int(is_over.sum())} device operations cannot have lasted as long as the file says (up "
        f"to {took_us[is_over].max():.4g} us): cut where the next of their stream begins, the last "
        "to what others of its name take"
    ]


def _successors(rank: RankTrace, work: Ints) -> tuple[Floats, Ints, Mask]:
    """Of operations by stream: when the next one of another launch begins, how many of those begin
    before it ends, and whether none begins right after it (others of its launch do, or none)."""
    next_us, covered = np.full(len(work), np.inf), np.zeros(len(work), np.int64)
    is_inner = np.ones(len(work), np.bool_)
    keys, correlation = stream_keys(rank, work), rank.correlation[work]
    for low, high in equal_runs(keys):
        start_us, end_us = rank.start_us[work[low:high]], rank.end_us[work[low:high]]
        launch = correlation[low:high]
        is_last = np.append((launch[1:] != launch[:-1]) | (launch[1:] <= 0), True)
        lasts = np.flatnonzero(is_last)
        after = lasts[np.searchsorted(lasts, np.arange(high - low))] + 1
        next_us[low:high] = np.append(start_us, np.inf)[after]
        covered[low:high] = np.searchsorted(start_us, end_us) - after
        is_inner[low:high] = ~is_last | (after == high - low)
    return next_us, covered, is_inner


@dataclass(frozen=True)
class Launched:
    """Operations of the device and the calls that launched them, a pair per row."""

    calls: Ints
    """All launch calls with a correlation, by correlation."""
    all_work: Ints
    """All operations with a correlation."""
    is_launched: Mask
    """Which of those have their call in the file."""
    work: Ints
    call: Ints


def launched_work(rank: RankTrace) -> Launched:
    calls = by_correlation(rank, rank.of(Category.RUNTIME, named=LAUNCH_CALL))
    work = np.flatnonzero(rank.is_device & (rank.correlation > 0))
    call = calls_of(rank, work, calls)
    is_launched = call >= 0
    return Launched(calls, work, is_launched, work[is_launched], call[is_launched])


def with_device_clock(rank: RankTrace, launched: Launched) -> tuple[RankTrace, list[str]]:
    """`rank` with its device's clock set right where one shift explains all, and a line of what is
    wrong with it.

    A shift is possible while no operation begins before its launch call and none ends after a call
    that waited for it, within the tolerance.
    """
    delay_us = float((rank.start_us[launched.work] - rank.start_us[launched.call]).min())
    overrun_us = _overruns_us(rank, launched)
    broken = int((overrun_us > CLOCK_TOLERANCE_US).sum())
    worst_us = float(overrun_us.max(initial=-np.inf))
    if -CLOCK_TOLERANCE_US <= delay_us < LONGEST_LAUNCH_US and not broken:
        return rank, []
    shift_us = max(delay_us - USUAL_LAUNCH_US, worst_us)
    fits = len(overrun_us) > 0 and worst_us <= delay_us + CLOCK_TOLERANCE_US
    if fits and (delay_us < 0 or 2 * broken >= len(overrun_us)):
        side = "late" if shift_us > 0 else "early"
        fault = (
            f"the device's clock is {abs(shift_us) / 1e3:.3f} ms {side} against the host's: "
            "its operations were shifted"
        )
        is_moved = rank.is_device | (rank.category == Category.GPU_ANNOTATION)
        start_us = np.where(is_moved, rank.start_us - shift_us, rank.start_us)
        first_us = min(float(start_us.min()), 0.0)
        origin_ns = rank.origin_ns + round(first_us * 1e3)
        shifted = replace(rank, start_us=start_us - first_us, origin_ns=origin_ns)
        order = np.lexsort((-shifted.duration_us, shifted.start_us))
        return take_rows(shifted, order), [fault]
    if broken:
        fault = (
            f"{broken} of {len(overrun_us)} calls that wait for the device return "
            f"before what they wait for ends (by up to {worst_us:.1f} us): do the clocks of host "
            "and device drift apart?"
        )
    elif delay_us >= LONGEST_LAUNCH_US:
        fault = (
            f"every device operation begins {delay_us / 1e3:.1f} ms or more after its launch call: "
            "is the device's clock late?"
        )
    else:
        lead_us = rank.start_us[launched.call] - rank.start_us[launched.work]
        fault = (
            f"{int((lead_us > CLOCK_TOLERANCE_US).sum())} device operations begin before their "
            f"launch call (by up to {lead_us.max():.1f} us)"
        )
    return rank, [fault]


def _overruns_us(rank: RankTrace, launched: Launched) -> Floats:
    """Per call that waits for the device: how much later than its return the awaited work ends.

    Of calls that wait for a stream, those right after a copy to the host on the same thread. Calls
    that wait for a device count where the rank uses one device only.
    """
    waits = rank.of(Category.RUNTIME, named=SYNC_CALL)
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


def check_one_process(rank: RankTrace) -> None:
    """Raise `TraceError` where several processes of a file ran operators and launched work, or
    mark steps: a rank is one process."""
    ops, calls = rank.of(Category.CPU_OP), rank.of(Category.RUNTIME, named=LAUNCH_CALL)
    if not len(ops) or rank.pid[ops].min() == rank.pid[ops].max():
        return
    busy = calls[rank.correlation[calls] > 0]
    if not rank.is_device.any():
        host = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)
        busy = np.flatnonzero(rank.name_matches(STEP_NAME) & rank.is_of(host))
    pids = np.intersect1d(rank.pid[busy], rank.pid[ops])
    if len(pids) > 1:
        shown = ", ".join(map(str, pids.tolist()))
        raise TraceError(
            f"{rank.where}: the file holds processes {shown}: give each in a file of its own, all "
            "in one folder"
        )


def check_types(rank: RankTrace) -> None:
    """Raise `TraceError`, naming event and field, where a list of arguments is no list."""
    for column, key in _LISTS.items():
        values = getattr(rank, column)
        for text in distinct(values[values >= 0]).tolist():
            value = rank.strings[text]
            if value == _NO_TEXT:
                values[values == text] = NONE
            elif not value.startswith(_LIST_STARTS):
                event = int(rank.file_index[np.argmax(values == text)])
                raise TraceError(
                    f"{rank.where}: damaged trace: Expected a list, found "
                    f"{value[:30]} - at traceEvents[{event}].args.{key}"
                )
