"""The closed form of an adapter's cache, corrected by trees that were fitted to exact replays.

They know what the closed form does not: how queries that share rows are spread over a batch, and
what small caches lose of them. Independent lookups, and policies other than LRU, keep their closed
form, which is exact to a few thousandths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.forest import Forest, joined
from perfmodel.cost.tiers.nic.cache import (
    NIC_CACHES,
    ClosedForm,
    NicLoad,
    footprint,
    logit,
    moved_to,
    share,
    table_accesses,
)
from perfmodel.cost.tiers.nic.engine import NIC_COSTS, StepChange
from perfmodel.embedding.cache import shared_classes
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import read_bytes

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
    tables = table_accesses(load.tables)
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


def trees_of(document: Mapping[str, Any], columns: int, where: str) -> Forest:
    """From JSON: per key a list of nodes per tree, padded; a leaf's `feature` is -1.

    Raises `ModelError` that names `where` for what is not such trees of so many columns.
    """
    try:
        trees = [
            {
                "feature": feature,
                "threshold": threshold,
                "below": np.where(np.array(feature) < 0, -1, left),
                "above": np.where(np.array(feature) < 0, -1, right),
                "value": value,
            }
            for feature, threshold, left, right, value in zip(
                *(document[key] for key in _KEYS), strict=True
            )
        ]
        return joined(trees, float(document["base"])).of_width(columns)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{where}: not trees of a model: {error}") from None


_KEYS = ("feature", "threshold", "left", "right", "value")
SCHEMA = "perfmodel.nic_cache/1"
BUNDLED = Path(__file__).with_name("cache.json")
FITTED_POLICIES = ("lru",)
_C = coefficients("tiers.learned")
_MAX_BYTES = 64_000_000


class Learned:
    """Every class's log odds to be found, moved alike until all together hit as often as fitted."""

    def residency(self, load: NicLoad) -> Floats:
        closed = ClosedForm().residency(load)
        classes, _ = shared_classes(table_accesses(load.tables))
        mass = classes.rows * classes.rate
        hit = float(np.dot(closed, mass) / mass.sum())
        if load.policy not in FITTED_POLICIES or not load.reuse or not 0.0 < hit < 1.0:
            return closed
        fitted = fitted_hit_frac(bundled(), features_of(load, hit)[None, :])
        return moved_to(closed, mass / mass.sum(), float(fitted[0]))


def fitted_hit_frac(trees: Forest, features: Floats) -> Floats:
    """Share of the lookups that hit, of loads `[loads, features]`.

    What the trees add to part of the closed form's log odds never falls with the capacity, so a
    larger cache never finds less.
    """
    closed = features[:, FEATURES.index("hit_logit")]
    return share(_C.closed_form_slope * closed + trees.predict(features))


def read_trees(path: Path, schema: str = SCHEMA, features: tuple[str, ...] = FEATURES) -> Forest:
    """Trees of a file that `benchmarks/nic_cache.py` wrote; `ModelError` for others."""
    try:
        document = json.loads(read_bytes(path, max_bytes=_MAX_BYTES))
    except (ValueError, RecursionError, PerfmodelError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ModelError(f"{path}: expected a file of schema {schema}")
    if tuple(document.get("features", ())) != features:
        raise ModelError(f"{path}: trees of other features than {', '.join(features)}")
    return trees_of(document, len(features), str(path))


@cache
def bundled() -> Forest:
    """Those that come with the package."""
    return read_trees(BUNDLED)


NIC_CACHES.register("learned")(Learned())


COST_SCHEMA = "perfmodel.nic_cost/1"
BUNDLED_COST = Path(__file__).with_name("cost.json")
COST_FEATURES = (
    *("closed_frac", "wire_after_frac", "probe_frac", "read_frac", "write_frac"),
    *("log_wire_us", "log_samples", "log_ranks", "log_vector_bytes", "in_rows", "train"),
)
MAX_FRAC = 4.0
"""Savings, and parts, of more than so many times the wire's time are taken as so many."""


def cost_features_of(change: StepChange) -> Floats:
    """`[COST_FEATURES]`: parts as shares of what the wire takes without adapters."""
    wire = max(change.wire_before_us, 1e-3)
    parts = (change.wire_after_us, change.probe_us, change.read_us, change.write_us)
    shares = np.array([NIC_COSTS["heuristic"].saved_us(change), *parts]) / wire
    sizes = np.log([wire, change.samples, change.ranks, change.vector_bytes])
    kinds = [float(change.in_rows), float(change.train)]
    return np.concatenate([np.clip(shares, -MAX_FRAC, MAX_FRAC), sizes, kinds])


def fitted_saving_frac(trees: Forest, features: Floats) -> Floats:
    """Savings as shares of the wire's time, of steps `[steps, features]`."""
    return np.asarray(features[:, COST_FEATURES.index("closed_frac")] + trees.predict(features))


class LearnedSaving:
    """The closed form, corrected by trees that were fitted to scheduled steps."""

    def saved_us(self, change: StepChange) -> float:
        found = fitted_saving_frac(bundled_cost(), cost_features_of(change)[None, :])
        return float(found[0]) * change.wire_before_us


@cache
def bundled_cost() -> Forest:
    """Those that come with the package."""
    return read_trees(BUNDLED_COST, COST_SCHEMA, COST_FEATURES)


NIC_COSTS.register("learned")(LearnedSaving())
