"""Fits the learned models of rows in adapters: what a cache finds, and what a step saves by it.

`python -m benchmarks.nic_cache FILE` draws queries, replays them exactly, fits trees and
writes them with their errors on exponents that the fit has not seen: what an LRU cache does with
queries that share rows, in the order in which they come. With `cost` before FILE it schedules
random steps with and without rows in adapters, and fits what they save, tested on exponents and
batches that the fit has not seen. No measurement enters.
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
from perfmodel.embedding.stack_distances import lru_distances
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.metrics import max_error, median_absolute_error
from sklearn.utils.validation import check_is_fitted
from xgboost import XGBRegressor

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.forest import Forest, forest_to_dict, of_booster
from perfmodel.cost.tiers.nic import (
    COST_FEATURES,
    COST_SCHEMA,
    MAX_FRAC,
    cost_features_of,
    fitted_saving_frac,
)
from perfmodel.designs import deployment_of
from perfmodel.designs.smartnic import SmartNic, first_rank
from perfmodel.embedding import last_lookups, zipf
from perfmodel.embedding.index_streams import Topics, draw_queries
from perfmodel.embedding.popularity import Popularity
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Nic, cluster, load, node
from perfmodel.prediction import predict
from perfmodel.workload import load_workload
from perfmodel.workload.adapter_hits import (
    AS_THEY_COME,
    FEATURES,
    ROOMS,
    SCHEMA,
    ClosedForm,
    NicLoad,
    NicTable,
    features_of,
    fitted_hit_frac,
    in_order,
    logit,
    measured_reuse,
)
from perfmodel.workload.tiered.adapter_rows import step_change

SEEN, HELD_OUT = (0.2, 0.5, 0.8, 1.0, 1.2, 1.5), (0.7, 1.1)
"""Exponents of the rows' popularity that the trees are fitted to, and tested on."""
ROWS = (4_000, 40_000)
CACHED_FRAC = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
BATCHES = ((64, 16), (64, 120), (256, 4), (256, 20), (1024, 1), (1024, 12))
"""Queries of a batch, lookups of a query."""
TOPICS = (None, (64, 8, 0.25), (32, 12, 0.4), (8, 16, 0.6), (16, 24, 0.8))
"""Queries per topic of a batch (at least one topic), rows of a topic, affinity."""
ORDERS = (AS_THEY_COME, "walked", "clustered")
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
    ordered, _ = in_order(drawn, order)
    before = last_lookups(popularity, seed=seed)
    stream = np.concatenate([before, *(each.rows for each in ordered)])
    distance = lru_distances(stream, np.arange(len(stream)))[len(before) :]
    table = NicTable(
        popularity=popularity, lookups=queries * lookups, row_bytes=1.0, pooling=lookups
    )
    reuse = measured_reuse(ordered, popularity)
    features, hits, closed = [], [], []
    for frac in CACHED_FRAC:
        capacity = max(round(frac * popularity.total_rows), 1)
        load = NicLoad((table,), capacity, queries, "lru", reuse)
        share = float(np.dot(ClosedForm().residency(load), popularity.share))
        features.append(features_of(load, share))
        hits.append(float(np.mean(distance < capacity)))
        closed.append(share)
    return np.array(features), np.array(hits), np.array(closed)


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
        trees = forest_to_dict(self.forest_)
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


STEPS, HELD_OUT_STEPS = 240, 90
BATCHES_SEEN, BATCHES_HELD_OUT = (64, 256, 512, 1024, 4096), (128, 768, 2048)
"""Samples of a rank."""
COST_TREES = XGBRegressor(
    n_estimators=150,
    max_depth=3,
    learning_rate=0.06,
    subsample=0.8,
    min_child_weight=4,
    reg_lambda=2.0,
    base_score=0.0,
    random_state=0,
    n_jobs=1,
)
"""Depth chosen by leaving out one batch after the other of what is fitted to."""


@dataclass(frozen=True, eq=False)
class Savings:
    """Scheduled steps: `[steps, features]`, and what each saved as a share of the wire's time."""

    features: Floats
    saved_frac: Floats


def scheduled_savings(
    steps: int, alphas: Sequence[float], batches: Sequence[int], *, seed: int
) -> Savings:
    """So many random steps, each scheduled with rows in adapters and without."""
    draw = np.random.default_rng(seed)
    features: list[Floats] = []
    saved: list[float] = []
    base, plain_node = load_workload("smartnic-rm"), node("a100-sxm-40gb")
    while len(saved) < steps:
        part = load("u280", "nic")
        assert isinstance(part, Nic)
        nic = replace(
            part,
            memory_gb_per_s=float(draw.choice([25.0, 100.0, 460.0])),
            engine_rows_per_us=float(draw.choice([50.0, 200.0, 1000.0, 4000.0])),
            descriptors_per_us=float(draw.choice([50.0, 200.0, 1000.0, 4000.0])),
            gb_per_s=float(draw.choice([12.5, 25.0, 50.0])),
        )
        ranks = int(draw.choice([4, 8, 16]))
        dim = int(draw.choice([32, 64, 128, 256]))
        machine = cluster(replace(plain_node, gpus=1, nics=1, nic=nic), ranks)
        workload = base.with_(
            table__pooling=float(draw.choice([1, 1, 2, 4, 8, 16])),
            table__alpha=float(draw.choice(alphas)),
            table__dim=dim,
            model__bottom_mlp=[256, dim],
            implementation__sharding=str(draw.choice(["table_wise", "row_wise"])),
        )
        design = SmartNic(
            cache_gib=float(draw.choice([0.25, 1.0, 4.0])),
            remote_frac=1.0,
            applied="always",
            message_bytes=float(draw.choice([8, 64, 512, 4096])),
            host_bypass=bool(draw.random() < 0.7),
        )
        batch = int(draw.choice(batches)) * ranks
        try:
            plain = deployment_of(workload, machine, batch, train=bool(draw.random() < 0.4))
            cached = design.apply(plain)
            if cached.placement == plain.placement:
                continue
            change = step_change(first_rank(cached), cached.machine)
            before, after = (predict(each).results[0].step_us for each in (plain, cached))
        except PerfmodelError:
            continue
        features.append(cost_features_of(change))
        saved.append((before - after) / max(change.wire_before_us, 1e-3))
    return Savings(np.array(features), np.clip(np.array(saved), -MAX_FRAC, MAX_FRAC))


def cost_document_of(seen: Savings, unseen: Savings) -> dict[str, Any]:
    """Trees fitted to `seen` on top of the closed form, and both models' errors on `unseen`."""
    closed = COST_FEATURES.index("closed_frac")
    trees = clone(COST_TREES).fit(
        seen.features, seen.saved_frac, base_margin=seen.features[:, closed]
    )
    forest = _forest(trees)
    document = {"schema": COST_SCHEMA, "features": list(COST_FEATURES)}
    document["trees"] = forest_to_dict(forest)
    answers = {
        "learned": fitted_saving_frac(forest, unseen.features),
        "heuristic": unseen.features[:, closed],
    }
    document["fitted_to"] = {
        "steps": len(seen.saved_frac),
        "alphas": list(SEEN),
        "held_out_alphas": list(HELD_OUT),
        "batches_per_rank": list(BATCHES_SEEN),
        "held_out_batches_per_rank": list(BATCHES_HELD_OUT),
        "held_out_errors": {
            name: saving_errors(found, unseen.saved_frac) for name, found in answers.items()
        },
        "source": "benchmarks.nic_cache: scheduled steps, no measurement",
    }
    return document


def saving_errors(predicted_frac: Floats, saved_frac: Floats) -> dict[str, float]:
    """Of savings as shares of the wire's time: absolute errors, how often the choice is right, and
    what wrong choices lose in the mean."""
    error, wrong = np.abs(predicted_frac - saved_frac), (predicted_frac > 0) != (saved_frac > 0)
    return {
        "median": round(float(np.median(error)), 4),
        "p90": round(float(np.quantile(error, 0.9)), 4),
        "right_choice_frac": round(float(np.mean(~wrong)), 4),
        "lost_frac": round(float(np.mean(np.abs(saved_frac) * wrong)), 4),
        "n": len(error),
    }


def main(path: str, kind: str = "hits") -> None:
    """Fit and write; some minutes."""
    if kind == "cost":
        seen = scheduled_savings(STEPS, SEEN, BATCHES_SEEN, seed=1)
        unseen = scheduled_savings(HELD_OUT_STEPS, HELD_OUT, BATCHES_HELD_OUT, seed=2)
        document = cost_document_of(seen, unseen)
    else:
        document = document_of(sweep(SEEN, every=EVERY), sweep(HELD_OUT, every=EVERY))
    Path(path).write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[-1], *sys.argv[1:-1])
