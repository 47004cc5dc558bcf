"""Do the events of each thread nest, all of them, at every depth?"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import by_thread, equal_runs

MOST_JUMPS = 200
"""Real files: up to 50. Beyond it, what was found by then counts, so that time stays linear."""


def crossings_us(rank: RankTrace, rows: Ints) -> Floats:
    """Per row: by how much it both begins within an earlier one of its thread and ends after it,
    whichever of the two is less; of several the one that ends last. Below 0 where it crosses none.

    Each row looks for the nearest earlier one that ends no sooner than itself, by jumping over
    those that end sooner together with what these have jumped over; of all that, the latest end
    is kept.
    """
    rows = by_thread(rank, rows)
    start_us, end_us = rank.start_us[rows], rank.end_us[rows]
    first = np.zeros(len(rows), np.int64)
    for low, high in equal_runs(rank.thread[rows]):
        first[low:high] = low
    before = np.arange(len(rows)) - 1
    latest_us = np.full(len(rows), -np.inf)
    open_rows = np.flatnonzero(before >= first)
    for _ in range(MOST_JUMPS):
        is_sooner = end_us[before[open_rows]] < end_us[open_rows]
        open_rows = open_rows[is_sooner]
        if not len(open_rows):
            break
        over = before[open_rows]
        skipped_us = np.maximum(end_us[over], latest_us[over])
        latest_us[open_rows] = np.maximum(latest_us[open_rows], skipped_us)
        before[open_rows] = before[over]
        open_rows = open_rows[before[open_rows] >= first[open_rows]]
    result: Floats = np.minimum(latest_us - start_us, end_us - latest_us)
    return result
