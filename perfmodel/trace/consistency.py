"""Does what a trace says hold together? Types of arguments, references, order and nesting.

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened. No real file at hand breaks these rules within the tolerances, so they warn of damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfmodel.arrays import Floats, Ints, distinct
from perfmodel.errors import TraceError
from perfmodel.trace.categories import LAUNCH_CALL, Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import by_thread, equal_runs, outermost, stream_keys
from perfmodel.trace.window import find_steps

OVERLAP_US = 3.0
"""What neighbours may overlap by in files of whole microseconds."""
DEVICE_OVERLAP_US = 25.0
"""What operations of one stream may overlap by, as timestamps are off; real files: up to 13. Those
of one graph launch may run at the same time."""
MAX_RANK = 2**31 - 1
MAX_LEAD_US = 100.0
"""What an operation may start before its launch call: clocks differ. Real files: up to 50."""
_ONE_KERNEL = re.compile(r"^(?!.*(Graph|MultiDevice))\w*LaunchKernel")
_LISTS = {
    "input_shapes": "Input Dims",
    "input_dtypes": "Input type",
    "input_values": "Concrete Inputs",
    "input_strides": "Input Strides",
    "grid": "grid",
}
_LIST_STARTS = ("[", '"[')
"""A list, or the text of one."""


def check_types(rank: RankTrace) -> None:
    """Raise `TraceError`, naming event and field, where a list of arguments is no list."""
    for column, key in _LISTS.items():
        values = getattr(rank, column)
        used = np.zeros(len(rank.strings) + 1, np.bool_)
        used[values] = True
        for text in np.flatnonzero(used[:-1]).tolist():
            if not rank.strings[text].startswith(_LIST_STARTS):
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


def inconsistencies(rank: RankTrace) -> list[str]:
    """What in the events of one rank cannot have happened as recorded; one line per rule."""
    return [*_nesting(rank), *_references(rank)]


def _nesting(rank: RankTrace) -> Iterator[str]:
    steps = find_steps(rank)
    late_us = steps.end_us[:-1] - steps.start_us[1:]
    yield from _count_beyond(late_us, OVERLAP_US, "steps begin before the one before ended")
    ops = outermost(rank, rank.of(Category.CPU_OP))
    yield from _count_beyond(
        _overlaps(rank, ops, rank.thread[ops]),
        OVERLAP_US,
        "operators begin within another of their thread and end after it",
    )
    rows = np.flatnonzero(rank.is_device)
    keys = stream_keys(rank, rows)
    order = np.argsort(keys, kind="stable")
    yield from _count_beyond(
        _overlaps(rank, rows[order], keys[order], apart=rank.correlation[rows[order]]),
        DEVICE_OVERLAP_US,
        "device operations begin before the one before them on their stream ended",
    )


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


def _references(rank: RankTrace) -> Iterator[str]:
    runtime = rank.of(Category.RUNTIME)
    calls = by_thread(rank, runtime[rank.name_matches(LAUNCH_CALL)[runtime]])
    calls = calls[rank.correlation[calls] > 0]
    if not len(calls):
        return
    calls = calls[np.argsort(rank.correlation[calls], kind="stable")]
    work = np.flatnonzero(rank.is_device & (rank.correlation > 0))
    at = np.searchsorted(rank.correlation[calls], rank.correlation[work])
    call = calls[np.minimum(at, len(calls) - 1)]
    is_launched = rank.correlation[call] == rank.correlation[work]
    yield from _count_beyond(
        rank.start_us[call[is_launched]] - rank.start_us[work[is_launched]],
        MAX_LEAD_US,
        "device operations begin before their launch call",
    )
    alone = is_launched & rank.name_matches(_ONE_KERNEL)[call]
    alone &= rank.category[work] == Category.KERNEL
    repeated = int(alone.sum()) - len(distinct(call[alone]))
    if repeated:
        yield f"{repeated} kernels share the launch call of another"
    keys = stream_keys(rank, work)
    order = np.argsort(keys, kind="stable")
    launched = is_launched[order]
    missing = sum(
        int((~launched[low:high] & np.logical_or.accumulate(launched[low:high])).sum())
        for low, high in equal_runs(keys[order])
    )
    if missing:
        yield (
            f"{missing} device operations name a launch call that is not in the file, "
            "though earlier ones of their stream have theirs"
        )


def _count_beyond(excess_us: Floats, tolerance_us: float, what: str) -> Iterator[str]:
    count = int((excess_us > tolerance_us).sum())
    if count:
        yield f"{count} {what} (by up to {excess_us.max():.1f} us)"
