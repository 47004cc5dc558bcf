"""How many distinct bytes so many lookups in a row touch, and what an LRU cache finds by it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.locality.cache import TableAccess, shared_classes
from perfmodel.locality.popularity import Floats, touched_rows

WINDOWS = (1, 4, 16, 64, 256, 1024)
"""Queries that follow one another, in which reuse is measured (those that a batch has)."""
_POINTS, _FURTHEST = 160, 1e4
"""Of the curve; its end, in batches."""


@dataclass(frozen=True, eq=False)
class Footprint:
    """`lookups` `[points]` in a row touch `distinct_bytes` `[points]`, of `lookup_bytes` each."""

    lookups: Floats
    distinct_bytes: Floats
    lookup_bytes: float

    def hit_frac(self, capacity_bytes: float) -> float:
        """Of an LRU cache: what is not new in as many lookups as fill it.

        Source: Denning and Schwartz 1972, Properties of the working-set model; Xiang et al. 2013,
        HOTL: the miss ratio is the slope of the footprint where it reaches the cache's size.
        """
        return float(np.interp(capacity_bytes, *self._hits))

    def finding(self, other: Footprint, capacity_bytes: float) -> float:
        """The cache that finds as much of these lookups as one of `capacity_bytes` of `other`'s.

        It grows with `capacity_bytes`, also beyond what the curves know.
        """
        size, hits = self._hits
        found = float(np.interp(other.hit_frac(capacity_bytes), hits, size))
        return capacity_bytes + found - float(np.clip(capacity_bytes, size[0], size[-1]))

    @cached_property
    def _hits(self) -> tuple[Floats, Floats]:
        """Sizes of caches, and the share of the lookups that each finds."""
        steps = np.diff(self.lookups)
        slope = np.minimum.accumulate(np.diff(self.distinct_bytes) / steps)
        reached = np.concatenate([[0.0], np.cumsum(slope * steps)]) + self.distinct_bytes[0]
        missed = np.clip(slope / self.lookup_bytes, 0.0, 1.0)
        return (reached[1:] + reached[:-1]) / 2, 1.0 - missed


def footprint(
    tables: list[TableAccess], queries: float, reuse: tuple[tuple[float, float], ...] = ()
) -> Footprint:
    """Of lookups as many-sided as the tables' popularity says; `reuse`: see `NicLoad`.

    Lookups that repeat others of their window count for nothing: so many fewer independent ones
    touch as many rows. Between one lookup, which repeats none, and measured windows that share goes
    on in the logarithm of the window; beyond the last it stays, as batches are independent.
    """
    classes, _ = shared_classes(tables)
    batch = sum(table.lookups for table in tables)
    lookups = np.geomspace(1.0, batch * _FURTHEST, _POINTS)
    counted = lookups
    if reuse:
        window, ratio = (np.array(column) for column in zip(*reuse, strict=True))
        within = window / queries * batch
        touched = touched_rows(classes.rows, classes.rate, within) / ratio
        curve = touched_rows(classes.rows, classes.rate, lookups)
        share = np.append(1.0, np.interp(touched, curve, lookups) / within)
        within = np.append(1.0, within)
        counted = lookups * np.exp(np.interp(np.log(lookups), np.log(within), np.log(share)))
    distinct = touched_rows(classes.rows * classes.row_bytes, classes.rate, counted)
    each = float(np.dot(classes.rows * classes.rate, classes.row_bytes))
    return Footprint(lookups, np.maximum.accumulate(distinct), each)
