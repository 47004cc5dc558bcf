"""The order of a batch's queries: what it is found to change, and what finding it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.reorder import ORDERS, Queries, reordered
from perfmodel.tiers.nic.footprint import WINDOWS

AS_THEY_COME = "as_they_come"
PAIR_US = 0.1
"""Of the graph of queries and its order, per pair of lookups, on one core.
Source: timed where this project was made, 128 to 2,048 queries of 16 to 416 lookups: 0.02 to 0.7
"""


@dataclass(frozen=True)
class Ordered:
    """Batches in their order: `pairs` of lookups that were compared in each on average."""

    batches: tuple[Queries, ...]
    pairs: float

    @property
    def cpu_us(self) -> float:
        """On one core, per batch."""
        return self.pairs * PAIR_US


def in_order(batches: Sequence[Queries], order: str) -> Ordered:
    """Each batch in its `order`: as they come, or one of `ORDERS`. Raises `WorkloadError`."""
    if order == AS_THEY_COME:
        return Ordered(tuple(batches), 0.0)
    if order not in ORDERS:
        raise WorkloadError(
            f"order of queries {order!r}: expected one of {', '.join((AS_THEY_COME, *ORDERS))}"
        )
    found = [reordered(each, order) for each in batches]
    ordered = [each.in_order(way.order) for each, way in zip(batches, found, strict=True)]
    return Ordered(tuple(ordered), float(np.mean([way.pairs for way in found])))


def measured_reuse(
    batches: Sequence[Queries], popularity: Popularity
) -> tuple[tuple[float, float], ...]:
    """For `NicLoad.reuse`: of `batches` of equal size whose rows are as popular as told.

    Lookups per distinct row within the windows that a batch has, over those of independent ones.
    """
    queries = len(batches[0])
    lookups = float(np.mean([len(each.rows) for each in batches])) / queries
    windows = [window for window in WINDOWS if window < queries] + [queries]
    found = []
    for window in windows:
        reuse = float(np.mean([each.reuse(window) for each in batches]))
        alone = window * lookups / float(popularity.distinct_rows(window * lookups))
        found.append((float(window), reuse / alone))
    return tuple(found)
