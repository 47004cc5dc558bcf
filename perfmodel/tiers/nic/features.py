"""What the learned model of an adapter's cache looks at: all without a unit of size."""

from __future__ import annotations

import numpy as np

from perfmodel.locality.popularity import Floats
from perfmodel.tiers.nic.cache import NicLoad, accesses
from perfmodel.tiers.nic.footprint import footprint
from perfmodel.tiers.nic.heuristic import logit

ROOMS, RATIOS = (1, 16, 256), (4, 64, 1024)
"""Queries in whose distinct bytes the capacity is told, and whose measured reuse is."""
FEATURES = (
    "hit_logit",
    "independent_logit",
    *(f"log_room_{queries}" for queries in ROOMS),
    *(f"log_reuse_{queries}" for queries in RATIOS),
    "log_queries",
    "log_query_lookups",
)


def features_of(load: NicLoad, hit_frac: float) -> Floats:
    """`[FEATURES]` of a load that the closed form finds so much of."""
    tables = accesses(load.tables)
    lookups = sum(table.lookups for table in tables)
    curve = footprint(tables, load.queries, load.reuse)
    alone = footprint(tables, load.queries).hit_frac(load.capacity_bytes)
    within = np.minimum(np.array(ROOMS), load.queries) * lookups / load.queries
    touched = np.interp(np.log(within), np.log(curve.lookups), np.log(curve.distinct_bytes))
    reuse = load.reuse or ((1.0, 1.0),)
    window, ratio = (np.log(np.array(column)) for column in zip(*reuse, strict=True))
    measured = np.interp(np.log(np.array(RATIOS)), window, ratio)
    return np.concatenate(
        [
            logit(np.array([hit_frac, alone])),
            np.log(load.capacity_bytes) - touched,
            measured,
            np.log([load.queries, lookups / load.queries]),
        ]
    )
