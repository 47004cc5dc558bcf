"""Which event of a thread encloses which."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.ops import NO_OP
from perfmodel.trace.columns import Ints, Mask, RankTrace


def enclosing(rank: RankTrace, rows: Ints, is_op: Mask) -> tuple[list[int], list[int]]:
    """Per row of `rows` (in the rank's order): position in `rows` of the innermost op around it,
    and of the innermost event of either kind, or `NO_OP`.

    An event is enclosed by an earlier one of its thread that it begins before the end of and does
    not end after; neighbours that overlap by rounding do not enclose one another.
    """
    ops = np.full(len(rows), NO_OP, np.int64)
    any_kind = np.full(len(rows), NO_OP, np.int64)
    threads = rank.thread[rows]
    for thread in np.unique(threads):
        own = np.flatnonzero(threads == thread)
        starts, ends = rank.start_us[rows[own]].tolist(), rank.end_us[rows[own]].tolist()
        open_events: list[tuple[float, int, bool]] = []
        for at, start, end, op in zip(own.tolist(), starts, ends, is_op[own].tolist(), strict=True):
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            nearest = NO_OP
            for other_end, other, other_op in reversed(open_events):
                if other_end > start and other_end >= end:
                    if nearest == NO_OP:
                        any_kind[at] = nearest = other
                    if other_op:
                        ops[at] = other
                        break
            open_events.append((end, at, op))
    return ops.tolist(), any_kind.tolist()
