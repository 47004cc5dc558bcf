"""Whole tables, the largest first, over RecShard's split by popularity, on synthetic models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.designs import Lab, Study
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.cached_tables import RecShard, hot_frac
from perfmodel.embedding import Placement, TablePlacement
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.tables import Table

FP32_BYTES = 4
SMALL = {
    "implementation__table_precision": "fp32",
    "implementation__sharding": "table_wise",
    "model__bottom_mlp": [64],
    "model__top_mlp": [1],
}
"""Layers that take next to nothing beside the tables."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Models:
    """Synthetic models that differ in `total_rows`: rows and pooling lognormal, exponents even."""

    machine: str
    nodes: int
    total_rows: tuple[float, ...]
    tables: int
    dim: int
    batch: int
    mean_pooling: float
    rows_sigma: float
    pooling_sigma: float
    alpha: tuple[float, float]
    hbm_gb_per_rank: float
    seed: int

    def workload(self, total_rows: float) -> Workload:
        """One of the models."""
        draw = np.random.default_rng(self.seed)
        rows = draw.lognormal(0, self.rows_sigma, self.tables)
        pooling = draw.lognormal(0, self.pooling_sigma, self.tables)
        alpha = draw.uniform(*self.alpha, self.tables)
        rows = np.maximum(rows / rows.sum() * total_rows, 2)
        pooling = np.maximum(pooling / pooling.mean() * self.mean_pooling, 1)
        tables = tuple(
            Table(int(count), self.dim, round(float(each), 3), round(float(skew), 3))
            for count, each, skew in zip(rows, pooling, alpha, strict=True)
        )
        base = replace(load_workload("neo-i"), name="recshard-rm", tables=tables, batch=self.batch)
        return base.with_(**SMALL)


@dataclass(frozen=True)
class Compared:
    """Ratio of steps, whole tables over split; imbalance and lookups of host memory of both."""

    time: float
    imbalance: tuple[float, float]
    slow_frac: tuple[float, float]


def time(study: Study, models: Models) -> float:
    """Mean ratio of steps."""
    return float(np.mean([each.time for each in _compared(study.lab, models)]))


def balance(study: Study, models: Models) -> float:
    """Ratio of how far the busiest rank's kernels are above the mean."""
    pairs = np.array([each.imbalance for each in _compared(study.lab, models)])
    whole, split = pairs.mean(axis=0)
    return float(whole / split)


def slow_accesses(study: Study, models: Models) -> float:
    """Ratio of lookups of host memory."""
    whole, split = np.sum([each.slow_frac for each in _compared(study.lab, models)], axis=0)
    return float(whole / split)


@cache
def _compared(lab: Lab, models: Models) -> tuple[Compared, ...]:
    machine = lab.machine(models.machine, nodes=models.nodes)
    hbm_gb = models.hbm_gb_per_rank
    return tuple(
        _compare(deployment_of(models.workload(rows), machine), hbm_gb)
        for rows in models.total_rows
    )


def _compare(start: Deployment, hbm_gb: float) -> Compared:
    whole, hosted = size_greedy(start, hbm_gb * BYTES_PER_GB)
    split = RecShard(hbm_gb).apply(start)
    first, second = (predict(each, every_rank=True).results[0] for each in (whole, split))
    hot = hot_frac(start, hbm_gb * BYTES_PER_GB * start.ranks)
    pooling = np.array([table.pooling for table in start.workload.tables])
    slow: Any = [float((pooling * cold).sum() / pooling.sum()) for cold in (hosted, 1 - hot)]
    imbalance = (_above_mean(first), _above_mean(second))
    return Compared(first.step_us / second.step_us, imbalance, tuple(slow))


def size_greedy(deployment: Deployment, hbm_bytes: float) -> tuple[Deployment, Floats]:
    """Whole tables, the largest first, to the rank with fewest bytes, in device memory until it is
    full; and per table 1 where that is the host's."""
    sizes = [table.rows * table.dim * FP32_BYTES for table in deployment.workload.tables]
    held, inside = np.zeros(deployment.ranks), np.zeros(deployment.ranks)
    placed: dict[int, TablePlacement] = {}
    hosted = np.zeros(len(sizes))
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        rank = int(held.argmin())
        held[rank] += sizes[number]
        fits = inside[rank] + sizes[number] <= hbm_bytes
        inside[rank] += sizes[number] if fits else 0.0
        hosted[number] = 0.0 if fits else 1.0
        placed[number] = TablePlacement("table_wise", (rank,), "hbm" if fits else "host")
    tables = tuple(placed[number] for number in range(len(sizes)))
    return deployment.with_(placement=Placement(tables)), hosted


def _above_mean(result: Result) -> float:
    """How far the kernels of the busiest rank are above the mean, as a share of it."""
    busy = np.array([rank.kernel_sum_us - rank.comm_us for rank in result.ranks])
    return float(busy.max() / busy.mean() - 1)
