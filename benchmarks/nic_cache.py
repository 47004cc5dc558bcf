"""Fits the learned model of rows in adapters: what a cache finds.

`python -m benchmarks.nic_cache FILE` draws queries, replays them exactly, fits trees and
writes them with their errors on exponents that the fit has not seen: what an LRU cache does with
queries that share rows, in the order in which they come. No measurement enters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.metrics import max_error, median_absolute_error
from sklearn.utils.validation import check_is_fitted
from xgboost import XGBRegressor

from benchmarks.streams import Topics, draw_queries, last_lookups
from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.forest import Forest, encoded, of_booster
from perfmodel.embedding import Lru, Queries, reordered, zipf
from perfmodel.embedding.popularity import Popularity
from perfmodel.workload.adapter_caches import AS_THEY_COME, measured_reuse
from perfmodel.workload.adapter_hits import (
    FEATURES,
    ROOMS,
    SCHEMA,
    NicLoad,
    NicTable,
    closed_form,
    features_of,
    fitted_hit_frac,
    logit,
)

SEEN, HELD_OUT = (0.2, 0.5, 0.8, 1.0, 1.2, 1.5), (0.7, 1.1)
"""Exponents of the rows' popularity that the trees are fitted to, and tested on."""
ROWS = (4_000, 40_000)
CACHED_FRAC = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
BATCHES = ((64, 16), (64, 120), (256, 4), (256, 20), (1024, 1), (1024, 12))
"""Queries of a batch, lookups of a query."""
TOPICS = (None, (64, 8, 0.25), (32, 12, 0.4), (8, 16, 0.6), (16, 24, 0.8))
"""Queries per topic of a batch (at least one topic), rows of a topic, affinity."""
ORDERS = (AS_THEY_COME, "walked")
EVERY = 4
"""One of so many of these settings is replayed."""
COUNTED_LOOKUPS = 120_000
RISING = ("hit_logit", "independent_logit", *(f"log_room_{queries}" for queries in ROOMS))
TREES = XGBRegressor(
    n_estimators=120,
    max_depth=4,
    learning_rate=0.1,
    subsample=0.8,
    reg_lambda=2.0,
    base_score=0.0,
    monotone_constraints=tuple(int(name in RISING) for name in FEATURES),
    random_state=0,
    n_jobs=1,
)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Replays: what a model sees `[replays, features]`, and shares of lookups that hit."""

    features: Floats
    hit_frac: Floats
    closed_hit_frac: Floats
    alpha: Floats


def replay_capacities(
    popularity: Popularity, queries: int, lookups: int, topics: Topics | None, order: str, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Features, exact and closed-form shares of hits, for each capacity of `CACHED_FRAC`."""
    batches = max(COUNTED_LOOKUPS // (queries * lookups), 1)
    drawn = [
        draw_queries(popularity, queries, lookups, topics=topics, seed=seed * 1000 + number)
        for number in range(batches)
    ]
    ordered = [_in_order(each, order) for each in drawn]
    before = last_lookups(popularity, seed=seed)
    stream = np.concatenate([before, *(each.rows for each in ordered)])
    each = np.arange(len(stream))
    table = NicTable(
        popularity=popularity, lookups=queries * lookups, row_bytes=1.0, pooling=lookups
    )
    reuse = measured_reuse(ordered, popularity)
    features, hits, closed = [], [], []
    for frac in CACHED_FRAC:
        capacity = max(round(frac * popularity.total_rows), 1)
        load = NicLoad((table,), capacity, queries, "lru", reuse)
        share = float(np.dot(closed_form(load), popularity.share))
        features.append(features_of(load, share))
        hits.append(float(np.mean(Lru().hits(stream, capacity, each)[len(before) :])))
        closed.append(share)
    return np.array(features), np.array(hits), np.array(closed)


def _in_order(queries: Queries, order: str) -> Queries:
    return queries if order == AS_THEY_COME else queries.in_order(reordered(queries)[0])


def sweep(alphas: Sequence[float], *, every: int = 1) -> Sweep:
    """All replays of these exponents; `every` so many of the settings are taken."""
    parts, alpha_of = [], []
    for number, (alpha, rows, (queries, lookups), shape, order) in enumerate(_settings(alphas)):
        if number % every:
            continue
        topics = shape and Topics(max(queries // shape[0], 1), shape[1], shape[2])
        parts.append(replay_capacities(zipf(rows, alpha), queries, lookups, topics, order, number))
        alpha_of += [alpha] * len(CACHED_FRAC)
    features, hits, closed = (np.concatenate([part[at] for part in parts]) for at in range(3))
    return Sweep(features, hits, closed, np.array(alpha_of))


class HitRateRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Share of lookups that hit, from `FEATURES`: trees added to the closed form's log odds."""

    def __init__(self, trees: Any = TREES) -> None:
        self.trees = trees

    def fit(self, X: Floats, y: Floats) -> HitRateRegressor:
        """`y` are shares of lookups that hit, 0 to 1."""
        offset = coefficients("tiers.learned").closed_form_slope * X[:, FEATURES.index("hit_logit")]
        weight = np.maximum(y * (1.0 - y), 0.01)
        trees = clone(self.trees).fit(X, logit(y), base_margin=offset, sample_weight=weight)
        self.forest_ = _forest(trees)
        return self

    @property
    def document_(self) -> dict[str, Any]:
        """The document of `perfmodel.workload.adapter_hits`, without errors."""
        trees = encoded(self.forest_, len(FEATURES))
        return {"schema": SCHEMA, "features": list(FEATURES), "trees": trees}

    def predict(self, X: Floats) -> Floats:
        """As the stored model will."""
        check_is_fitted(self)
        return fitted_hit_frac(self.forest_, X)


def errors(model: HitRateRegressor, by_split: Sweep) -> dict[str, dict[str, float]]:
    """Absolute errors of the share that hits, learned and closed form: median, 90 %, worst."""
    answers = {"learned": model.predict(by_split.features), "closed_form": by_split.closed_hit_frac}
    return {
        name: {
            "median": round(float(median_absolute_error(by_split.hit_frac, hit_frac)), 5),
            "p90": round(float(np.quantile(np.abs(hit_frac - by_split.hit_frac), 0.9)), 5),
            "worst": round(float(max_error(by_split.hit_frac, hit_frac)), 5),
            "n": len(hit_frac),
        }
        for name, hit_frac in answers.items()
    }


def _settings(alphas: Sequence[float]) -> Iterator[tuple[Any, ...]]:
    yield from product(alphas, ROWS, BATCHES, TOPICS, ORDERS)


def _forest(trees: Any) -> Forest:
    return replace(of_booster(trees.get_booster())[0], start=0.0)


def document_of(seen: Sweep, unseen: Sweep) -> dict[str, Any]:
    """What is stored: trees fitted to `seen`, their errors on `unseen`, where they come from."""
    model = HitRateRegressor().fit(seen.features, seen.hit_frac)
    document = model.document_
    document["fitted_to"] = {
        "replays": len(seen.hit_frac),
        "alphas": list(SEEN),
        "held_out_alphas": list(HELD_OUT),
        "held_out_absolute_errors": errors(model, unseen),
        "source": "benchmarks.nic_cache: exact replays of drawn queries, no measurement",
    }
    return document


def main(path: str) -> None:
    """Fit and write; some minutes."""
    document = document_of(sweep(SEEN, every=EVERY), sweep(HELD_OUT, every=EVERY))
    Path(path).write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
