"""Does what a trace says hold together? Types of arguments, references, order and nesting.

A damaged or edited file may be valid JSON with valid values and still say what cannot have
happened. No real file at hand breaks these rules within the tolerances, so they warn of damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import TraceError
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import equal_runs, outermost, stream_keys
from perfmodel.trace.window import find_steps

OVERLAP_US = 3.0
"""What neighbours may overlap by in files of whole microseconds."""
DEVICE_OVERLAP_US = 25.0
"""What operations of one stream may overlap by, as timestamps are off; real files: up to 13. Those
of one graph launch may run at the same time."""
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
    return list(_nesting(rank))


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


def _count_beyond(excess_us: Floats, tolerance_us: float, what: str) -> Iterator[str]:
    count = int((excess_us > tolerance_us).sum())
    if count:
        yield f"{count} {what} (by up to {excess_us.max():.1f} us)"
