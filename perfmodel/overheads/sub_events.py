"""How many events the profiler recorded inside each stretch of host time.

Recording one costs the host time that a run without the profiler does not spend.
Source: Lin et al. 2022, section IV-C, and the published code's `CPU_EVENT_OVERHEAD` (2 us).
"""

from __future__ import annotations

import numpy as np

from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, Ints, RankTrace
from perfmodel.trace.link import by_thread, runs

_RECORDED = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)


class SubEvents:
    """Positions of one rank's host events on their threads, to count those in between."""

    def __init__(self, rank: RankTrace, ops: Ints) -> None:
        """`ops`: rows of the outermost operators, by thread, then time."""
        rows = by_thread(rank, rank.of(*_RECORDED))
        self._at = np.full(len(rank), NONE, np.int64)
        self._at[rows] = np.arange(len(rows))
        self._ops = ops
        self._past = self._first_after(rank, rows)

    def _first_after(self, rank: RankTrace, rows: Ints) -> Ints:
        """Per operator: position of the first event that begins after it, or with the next."""
        past = np.zeros(len(self._ops), np.int64)
        spans = {int(rank.thread[rows[low]]): (low, high) for low, high in runs(rank.thread[rows])}
        for low, high in runs(rank.thread[self._ops]):
            ops = self._ops[low:high]
            first, last = spans[int(rank.thread[ops[0]])]
            starts = rank.start_us[rows[first:last]]
            past[low:high] = first + np.searchsorted(starts, rank.end_us[ops], side="left")
            past[low : high - 1] = np.minimum(past[low : high - 1], self._at[ops[1:]])
        count: Ints = np.maximum(past, self._at[self._ops] + 1)
        return count

    def between(self, first_row: Ints, second_row: Ints) -> Ints:
        """Events that begin after that of `first_row` and before that of `second_row`."""
        count: Ints = np.maximum(self._at[second_row] - self._at[first_row] - 1, 0)
        return count

    def rest_of_op(self, op: Ints, row: Ints) -> Ints:
        """Events in operator `op` (an index into `ops`) that begin after that of `row`."""
        count: Ints = np.maximum(self._past[op] - self._at[row] - 1, 0)
        return count

    def gap(self, op: Ints, next_op: Ints) -> Ints:
        """Events between the end of operator `op` and the start of `next_op` on its thread."""
        count: Ints = np.maximum(self._at[self._ops[next_op]] - self._past[op], 0)
        return count
