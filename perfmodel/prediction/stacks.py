"""The operators and annotations around a call, from the outermost to the innermost."""

from __future__ import annotations

import numpy as np

from perfmodel.trace import RankTrace
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import Ints


def around(rank: RankTrace, row: int) -> Ints:
    """Rows of all that encloses the event in `row` on its thread, from the outside."""
    at = rank.start_us[row]
    encloses = (
        np.isin(rank.category, (Category.CPU_OP, Category.ANNOTATION))
        & (rank.thread == rank.thread[row])
        & (rank.start_us <= at)
        & (rank.start_us + rank.duration_us >= at)
        & (rank.stream < 0)
    )
    rows = np.flatnonzero(encloses)
    return rows[np.lexsort((-rank.duration_us[rows], rank.start_us[rows]))]


def stack_of(rank: RankTrace, row: int) -> str:
    """Their names, with ` / ` between."""
    return " / ".join(rank.text(one) for one in around(rank, row).tolist())
