"""The operators and annotations around a call, from the outermost to the innermost."""

from __future__ import annotations

import numpy as np

from perfmodel.trace import RankTrace
from perfmodel.trace.categories import Category


def stack_of(rank: RankTrace, row: int) -> str:
    """Names of all that encloses the event in `row` on its thread, with ` / ` between."""
    at = rank.start_us[row]
    around = (
        np.isin(rank.category, (Category.CPU_OP, Category.ANNOTATION))
        & (rank.thread == rank.thread[row])
        & (rank.start_us <= at)
        & (rank.start_us + rank.duration_us >= at)
        & (rank.stream < 0)
    )
    rows = np.flatnonzero(around)
    rows = rows[np.lexsort((-rank.duration_us[rows], rank.start_us[rows]))]
    return " / ".join(rank.text(one) for one in rows.tolist())
