"""Do the events of each thread nest, all of them, at every depth?"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import by_thread, equal_runs

MAX_JUMPS = 200
"""Real files: up to 50. Beyond it, what was found by then counts, so that time stays linear."""


def crossings_us(rank: RankTrace, rows: Ints) -> Floats:
    """Per row, by thread: by how much it both begins within an earlier one of its thread and ends
    after it, whichever of the two is less; of several the one that ends last. Below 0 where it
    crosses none."""
    rows, until_us = crossed_until_us(rank, rows)
    return _excess_us(rank, rows, until_us)


def _excess_us(rank: RankTrace, rows: Ints, until_us: Floats) -> Floats:
    result: Floats = np.minimum(until_us - rank.start_us[rows], rank.end_us[rows] - until_us)
    return result


def crossed_until_us(rank: RankTrace, rows: Ints) -> tuple[Ints, Floats]:
    """`rows` by thread, and when the last of those ends that end before it and lie between it and
    the one around it.

    Each row looks for the nearest earlier one that ends no sooner than itself, by jumping over
    those that end sooner together with what these have jumped over; of all that, the latest end
    is kept.
    """
    rows = by_thread(rank, rows)
    end_us = rank.end_us[rows]
    first = np.zeros(len(rows), np.int64)
    for low, high in equal_runs(rank.thread[rows]):
        first[low:high] = low
    before = np.arange(len(rows)) - 1
    latest_us = np.full(len(rows), -np.inf)
    open_rows = np.flatnonzero(before >= first)
    for _ in range(MAX_JUMPS):
        is_sooner = end_us[before[open_rows]] < end_us[open_rows]
        open_rows = open_rows[is_sooner]
        if not len(open_rows):
            break
        over = before[open_rows]
        skipped_us = np.maximum(end_us[over], latest_us[over])
        latest_us[open_rows] = np.maximum(latest_us[open_rows], skipped_us)
        before[open_rows] = before[over]
        open_rows = open_rows[before[open_rows] >= first[open_rows]]
    return rows, latest_us


def crossing_at(rank: RankTrace, rows: Ints, tolerance_us: float) -> tuple[Floats, Mask]:
    """How far `rows` cross (`crossings_us`), and which rows of the rank share time with a crossing.

    Of two that cross, the later begins and the earlier ends from when some row begins that crosses
    in `rows` until what it crosses ends; so none is missed among those that share that time.
    """
    rows, until_us = crossed_until_us(rank, rows)
    excess_us = _excess_us(rank, rows, until_us)
    crossing = np.flatnonzero(excess_us > tolerance_us)
    crossing = crossing[np.argsort(rows[crossing])]  # in order of start
    latest_us = np.maximum.accumulate(until_us[crossing])
    last = np.searchsorted(rank.start_us[rows[crossing]], rank.end_us, side="right") - 1
    is_near = last >= 0
    is_near[is_near] = latest_us[last[is_near]] >= rank.start_us[is_near]
    return excess_us, is_near
