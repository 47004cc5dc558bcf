"""Which stretches of host time waited for the device or for another thread."""

from __future__ import annotations

import numpy as np

from perfmodel.trace.categories import COPY_CALL, SYNC_CALL, Category
from perfmodel.trace.columns import Floats, Ints, Mask, RankTrace
from perfmodel.trace.link import by_thread, runs

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
    found: Mask = (at >= 0) & (latest_end[at] > start_us)
    return found


def blocking_calls(rank: RankTrace) -> Ints:
    """Rows of synchronising calls and of copy calls above 50 us, by thread, then time."""
    calls = rank.of(Category.RUNTIME)
    long_copy = rank.name_matches(COPY_CALL)[calls] & (rank.duration_us[calls] > LONG_COPY_US)
    return by_thread(rank, calls[rank.name_matches(SYNC_CALL)[calls] | long_copy])


def waits_in_thread(rank: RankTrace, thread: Ints, start_us: Floats, end_us: Floats) -> Mask:
    """Which intervals of host time overlap a blocking call of their own thread (by its id)."""
    calls = blocking_calls(rank)
    found = np.zeros(len(start_us), bool)
    for low, high in runs(rank.thread[calls]):
        rows = calls[low:high]
        mine = np.flatnonzero(thread == rank.thread[rows[0]])
        found[mine] = overlaps(start_us[mine], end_us[mine], rank.start_us[rows], rank.end_us[rows])
    return found
