"""Layouts of the search as placements, and back."""

from __future__ import annotations

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.placement import Placement, RowCache, TablePlacement
from perfmodel.plan.problem import Layout
from perfmodel.plan.surrogate import Surrogate

CACHE = "rows"


def placement_of(deployment: Deployment, made: Surrogate, layout: Layout) -> Placement:
    """The layout as a placement; tables beside device memory share one cache there."""
    cached_bytes = np.zeros(deployment.ranks)
    tables = []
    for choice, ranks in zip(layout.chosen.tolist(), layout.ranks, strict=True):
        way = made.ways[choice]
        is_cached = way.tier != "hbm"
        if is_cached:
            cached_bytes[list(ranks)] += way.hbm_bytes
        names = (CACHE,) if is_cached else ()
        tables.append(TablePlacement(way.sharding, ranks, way.tier, way.dtype, caches=names))
    if not cached_bytes.any():
        return Placement(tuple(tables))
    resident = layout.loads["hbm_bytes"] - cached_bytes
    room = float(made.problem.hbm_bytes - resident.max())
    size = max(min(float(cached_bytes.max()), room), 1.0)
    return Placement(tuple(tables), (RowCache(CACHE, "hbm", size, "set_associative"),))


def of_placement(made: Surrogate, placement: Placement) -> Layout | None:
    """A placement as a layout of the surrogate's choices, or None where it is none of them."""
    cached = _cached_frac(made, placement)
    known: dict[tuple[int, str, str, int], int] = {}
    for at, way in enumerate(made.ways):
        own = way.number, way.sharding, way.tier, way.parts
        before = made.ways[known[own]].cached_frac if own in known else np.inf
        if abs(way.cached_frac - cached) < abs(before - cached):
            known[own] = at
    chosen = []
    for number, placed in enumerate(placement.tables):
        key = (number, placed.sharding, placed.tier, len(placed.ranks))
        if key not in known or placed.hot_rows or (placed.caches and placed.tier == "hbm"):
            return None
        chosen.append(known[key])
    ranks = tuple(placed.ranks for placed in placement.tables)
    found = Layout(made.problem, np.array(chosen), ranks)
    return found if found.fits else None


def _cached_frac(made: Surrogate, placement: Placement) -> float:
    """Of the fullest rank's tables beside device memory, what its caches there hold."""
    sizes = {way.number: way.hbm_bytes * way.parts for way in made.ways if way.tier == "hbm"}
    held = np.zeros(made.problem.ranks)
    for number, placed in enumerate(placement.tables):
        if placed.tier != "hbm":
            held[list(placed.ranks)] += sizes[number] / len(placed.ranks)
    room = sum(cache.capacity_bytes for cache in placement.caches if cache.at == "hbm")
    return min(room / float(held.max()), 1.0) if held.any() else 0.0
