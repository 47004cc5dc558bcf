"""How many distinct bytes so many lookups in a row touch, and what an LRU cache finds by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.locality.cache import TableAccess, shared_classes
from perfmodel.locality.popularity import Floats, touched_rows

WINDOWS = (1, 4, 16, 64, 256, 1024)
"""Queries that follow one another, in which reuse is measured (those that a batch has)."""
_POINTS, _FURTHEST = 160, 1e4
"""Of the curve; its end, in batches."""


@dataclass(frozen=True, eq=False)
class Footprint:
    """`lookups` `[points]` in a row touch `distinct_bytes` `[points]`."""

    lookups: Floats
    distinct_bytes: Floats

    def hit_frac(self, capacity_bytes: float) -> float:
        """Of an LRU cache: what is not new in as many lookups as fill it.

        Source: Denning and Schwartz 1972, Properties of the working-set model; Xiang et al. 2013,
        HOTL: the miss ratio is the slope of the footprint where it reaches the cache's size.
        """
        steps = np.diff(self.lookups)
        slope = np.diff(self.distinct_bytes) / steps
        slope = np.minimum.accumulate(slope)
        reached = np.concatenate([[0.0], np.cumsum(slope * steps)]) + self.distinct_bytes[0]
        middle = (reached[1:] + reached[:-1]) / 2
        new_bytes = float(np.interp(capacity_bytes, middle, slope))
        first = self.distinct_bytes[0] / self.lookups[0]
        return float(np.clip(1.0 - new_bytes / first, 0.0, 1.0))


def footprint(
    tables: list[TableAccess], queries: float, reuse: tuple[tuple[float, float], ...] = ()
) -> Footprint:
    """Of lookups as many-sided as the tables' popularity says; `reuse`: see `NicLoad`.

    Lookups that repeat others of their window count for nothing: so many fewer independent ones
    touch as many rows. Between measured windows that share goes on in the logarithm of the window;
    beyond the last it stays, as batches are independent.
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
        share = np.interp(touched, curve, lookups) / within
        counted = lookups * np.exp(np.interp(np.log(lookups), np.log(within), np.log(share)))
    distinct = touched_rows(classes.rows * classes.row_bytes, classes.rate, counted)
    return Footprint(lookups, np.maximum.accumulate(distinct))
