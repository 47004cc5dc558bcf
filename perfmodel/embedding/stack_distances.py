"""Index streams replayed through caches exactly, by stack distances.

A row is found by a cache of `c` rows if its distance is below `c`, for every size at once: sorts
and sums over whole columns, n log n for n lookups.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ints, Mask

NEVER = np.iinfo(np.int64).max
"""Distance of a row that was not looked up before: no cache holds it."""


def lru_distances(rows: Ints, step: Ints) -> Ints:
    """Rows looked up since the last lookup of the same row, at the beginning of each step.

    `rows` `[lookups]` are row numbers, `step` `[lookups]` ascending numbers of the batch (or, to
    work lookup by lookup, of the lookup). All lookups of one row within a step have the distance
    of the first.

    Source: Mattson et al. 1970, Evaluation techniques for storage hierarchies. A lookup j counts
    if it is the first of its row since the one before t, that is if j's predecessor is not later.
    """
    before, _ = predecessors(rows)
    earlier = earlier_not_larger(before, np.zeros_like(before))
    distance = earlier - (before + 1) - earlier_not_larger(before, step)
    return _as_step_begins(np.where(before < 0, NEVER, distance), before, step)


def lfu_distances(rows: Ints, step: Ints) -> Ints:
    """Rows looked up more often so far, or as often and later, at the beginning of each step.

    Arguments as in `lru_distances`. Counts are those of the whole stream and of all rows (perfect
    LFU); a row enters the cache where its count is at least the least of those in it.
    """
    before, nth = predecessors(rows)
    begin = np.searchsorted(step, step, side="left")
    order = np.lexsort((np.arange(len(rows)), nth))
    group = np.cumsum(_changes(nth[order]), dtype=np.int64)
    inside = np.cumsum(_changes(nth[order]) | _changes(step[order]), dtype=np.int64)
    smaller = np.empty_like(order)
    smaller[order] = earlier_not_larger(before[order], group)
    smaller[order] -= earlier_not_larger(before[order], inside)
    reached = nth[order] * len(rows) + order
    since = np.searchsorted(reached, (nth - 1) * len(rows) + begin, side="left")
    since -= np.searchsorted(reached, (nth - 1) * len(rows) + before, side="right")
    return _as_step_begins(np.where(before < 0, NEVER, smaller + since), before, step)


def predecessors(rows: Ints) -> tuple[Ints, Ints]:
    """Where each row was looked up last (-1: never), and how often before; both `[lookups]`."""
    order = np.argsort(rows, kind="stable")
    same, place = ~_changes(rows[order]), np.arange(len(rows))
    before, nth = np.full(len(rows), -1, np.int64), np.empty(len(rows), np.int64)
    before[order[1:]] = np.where(same[1:], order[:-1], -1)
    nth[order] = place - np.maximum.accumulate(np.where(same, 0, place))
    return before, nth


def earlier_not_larger(values: Ints, group: Ints) -> Ints:
    """For each place, how many earlier places of its group have a value not above its own.

    `values` `[n]`; `group` `[n]` ascending. The places in the order of their values are split by
    one bit of the place after the other, the highest first: at each bit, those of the lower half
    that stand before one of the upper half are counted.
    """
    size = len(values)
    order = np.lexsort((np.arange(size), values, -group)).astype(np.int64)
    counts = np.zeros(size, np.int64)
    for bit in range(max(size - 1, 0).bit_length() - 1, -1, -1):
        half = 1 << bit
        upper = (order >> bit) & 1
        begin = (order >> (bit + 1)) << (bit + 1)
        lower_before = np.cumsum(1 - upper) - (1 - upper) - (begin >> 1)
        is_upper = upper == 1
        counts[order[is_upper]] += lower_before[is_upper]
        place = np.where(is_upper, np.arange(size) - lower_before + half, begin + lower_before)
        reordered = np.empty_like(order)
        reordered[place] = order
        order = reordered
    return counts


def _as_step_begins(distance: Ints, before: Ints, step: Ints) -> Ints:
    """Repeats within a step take the distance of their row's first lookup in it."""
    repeats = (before >= 0) & (step[np.maximum(before, 0)] == step)
    first = np.where(repeats, before, np.arange(len(before)))
    while not np.array_equal(further := first[first], first):
        first = further
    return np.asarray(distance[first])


def _changes(values: Ints) -> Mask:
    return np.append(True, values[1:] != values[:-1])[: len(values)]
