"""Does what a trace says hold together: types, ranks, nesting, lost events?

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened, and a profiler that loses buffers writes events that are each plausible. No real file at
hand breaks these rules within the tolerances, so they warn of damage: in the 31 recordings of GPUs
at hand, of the launches before the last one whose kernel was recorded, none lacks its kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from perfmodel.base.arrays import Floats, distinct, is_among
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    DEVICE_WAIT_CALL,
    GRAPH_LAUNCH_CALL,
    KERNEL_LAUNCH_CALL,
    LAUNCH_CALL,
    STEP_NAME,
    Category,
)
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import crossings_us, equal_runs, stream_keys
from perfmodel.trace.repairs import (
    CLOCK_TOLERANCE_US,
    Launched,
    endless,
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
        for text in distinct(values[values >= 0]).tolist():
            value = rank.strings[text]
            parts = value.strip('"').split(";")
            if value == _NO_TEXT:
                values[values == text] = NONE
            elif column == "input_shapes" and _TEXT_OF_SIZES.fullmatch(value):
                sizes = [[int(size) for size in part.split(",") if size] for part in parts]
                rank.strings.texts[text], known_as_text = json.dumps(sizes), True
            elif column == "input_dtypes" and known_as_text and "[" not in value:
                rank.strings.texts[text] = json.dumps(parts)
            elif not value.startswith(_LIST_STARTS):
                event = int(rank.file_index[np.argmax(values == text)])
                raise TraceError(
                    f"{rank.where}: damaged trace: Expected a list, found "
                    f"{value[:30]} - at traceEvents[{event}].args.{key}"
                )


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
    faults = [*endless(rank), *overlong]
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
    return rank, [
        *faults,
        *clock_faults,
        *count_line(lost, f"{lacking} missing"),
        *_references(rank, launched),
        *_calls(rank, launched),
    ]


def count_line(number: object, what: str) -> Iterator[str]:
    """The line of a rule that so many break, if any do."""
    if number:
        yield f"{number} {what}"


def count_beyond(excess_us: Floats, tolerance_us: float, what: str) -> Iterator[str]:
    count = int((excess_us > tolerance_us).sum())
    if count:
        yield f"{count} {what} (by up to {excess_us.max():.1f} us)"


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


def _references(rank: RankTrace, launched: Launched) -> Iterator[str]:
    """What launch calls cannot have launched as the file says."""
    alone = rank.name_matches(KERNEL_LAUNCH_CALL)[launched.call]
    alone &= rank.category[launched.work] == Category.KERNEL
    repeated = int(alone.sum()) - len(distinct(launched.call[alone]))
    yield from count_line(repeated, "kernels share the launch call of another")
    keys = stream_keys(rank, launched.all_work)
    order = np.argsort(keys, kind="stable")
    missing = 0
    for low, high in equal_runs(keys[order]):
        has_call = launched.is_launched[order[low:high]]
        missing += int((~has_call & np.logical_or.accumulate(has_call)).sum())
    yield from count_line(
        missing,
        "device operations name a launch call that is not in the file, though earlier ones of "
        "their stream have theirs",
    )
    untied = int((rank.is_device & ((rank.correlation <= 0) | (rank.stream < 0))).sum())
    yield from count_line(
        untied, "device operations name no launch call or no stream, though others do"
    )
    nowhere = int((rank.device[rank.is_device] < 0).sum())
    if nowhere < rank.is_device.sum():
        yield from count_line(nowhere, "device operations name no device, though others do")
    keys = stream_keys(rank, launched.work)
    order = np.argsort(keys, kind="stable")
    before, call = launched.call[order[:-1]], launched.call[order[1:]]
    is_back = (keys[order[:-1]] == keys[order[1:]]) & (before != call)
    is_back &= rank.end_us[call] < rank.start_us[before]
    yield from count_line(
        is_back.sum(),
        "device operations begin before one of their stream that was launched earlier",
    )


def _calls(rank: RankTrace, launched: Launched) -> Iterator[str]:
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
        yield f"{is_out.sum()} of {len(is_out)} device operations were launched outside all steps"


def inconsistencies(rank: RankTrace) -> Iterator[str]:
    """What in the events of one rank cannot have happened as recorded; one line per rule."""
    steps = find_steps(rank)
    late_us = steps.end_us[:-1] - steps.start_us[1:]
    yield from count_beyond(late_us, OVERLAP_US, "steps begin before the one before ended")
    yield from _crossings(rank)
    rows = np.flatnonzero(rank.is_device)
    rows = rows[np.argsort(stream_keys(rank, rows), kind="stable")]
    found, launch = [np.zeros(0)], rank.correlation[rows]
    for low, high in equal_runs(stream_keys(rank, rows)):
        # How long each begins before the latest end so far, unless both are of one launch.
        end_us = rank.end_us[rows[low : high - 1]]
        latest = np.maximum.accumulate(end_us)
        overlap_us = latest - rank.start_us[rows[low + 1 : high]]
        last = np.maximum.accumulate(np.where(end_us == latest, np.arange(len(end_us)), 0))
        together = launch[low:high][last] == launch[low + 1 : high]
        found.append(overlap_us[~together | (launch[low + 1 : high] <= 0)])
    what = "device operations begin before the one before them on their stream ended"
    yield from count_beyond(np.concatenate(found), DEVICE_OVERLAP_US, what)


def _crossings(rank: RankTrace) -> Iterator[str]:
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
        yield from count_beyond(crossings_us(rank, among), tolerance_us, f"{what} {crosses}")
    every = "calls, or what they are within,"
    yield from count_beyond(every_us, CALL_OVERLAP_US, f"{every} {crosses}")
