"""Layouts of the search as placements, and back."""

from __future__ import annotations

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.placement import Placement, RowCache, TablePlacement
from perfmodel.plan.problem import Layout
from perfmodel.plan.surrogate import Surrogate

CACHE = "rows"


def placement_of(deployment: Deployment, made: Surrogate, layout: Layout) -> Placement:
    """The layout as a placement; tables in host memory share one cache of device memory."""
    cached_bytes = np.zeros(deployment.ranks)
    tables = []
    for choice, ranks in zip(layout.chosen.tolist(), layout.ranks, strict=True):
        way = made.ways[choice]
        is_host = way.tier == "host"
        if is_host:
            cached_bytes[list(ranks)] += way.hbm_bytes
        names = (CACHE,) if is_host else ()
        tables.append(TablePlacement(way.sharding, ranks, way.tier, way.dtype, caches=names))
    if not cached_bytes.any():
        return Placement(tuple(tables))
    resident = layout.loads["hbm_bytes"] - cached_bytes
    room = float(made.problem.hbm_bytes - resident.max())
    size = max(min(float(cached_bytes.max()), room), 1.0)
    return Placement(tuple(tables), (RowCache(CACHE, "hbm", size, "set_associative"),))


def of_placement(made: Surrogate, placement: Placement) -> Layout | None:
    """A placement as a layout of the surrogate's choices, or None where it is none of them."""
    known = {
        (way.number, way.sharding, way.tier, way.parts): at for at, way in enumerate(made.ways)
    }
    chosen = []
    for number, placed in enumerate(placement.tables):
        key = (number, placed.sharding, placed.tier, len(placed.ranks))
        if key not in known or placed.hot_rows or (placed.caches and placed.tier == "hbm"):
            return None
        chosen.append(known[key])
    ranks = tuple(placed.ranks for placed in placement.tables)
    found = Layout(made.problem, np.array(chosen), ranks)
    return found if found.fits else None
