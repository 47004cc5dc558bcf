"""RecShard's split of tables by popularity beside whole tables, on a synthetic model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.device_caches import RecShard, hot_fracs
from perfmodel.embedding import Placement, TablePlacement
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.prediction.types import Result
from perfmodel.units import BYTES_PER_GB
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.tables import Table

from . import neo_box as box

FP32_BYTES = 4
COUNTED = "exact, rows are counted and no machine has a part; "
SMALL = {
    "implementation__table_precision": "fp32",
    "implementation__sharding": "table_wise",
    "model__bottom_mlp": [64],
    "model__top_mlp": [1],
}
"""Next to nothing beside the tables, and TorchRec's software."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """Ratio of steps, whole tables over split; imbalance and lookups of host memory of both."""

    time: float
    imbalance: tuple[float, float]
    slow_frac: tuple[float, float]


@case("V14-recshard")
def recshard(lab: Lab) -> Iterator[Figure]:
    """The three models of the box."""
    found = [_compared(lab, about) for about in box.RECSHARD.values()]
    slow = [sum(each.slow_frac[way] for each in found) for way in (0, 1)]
    spread = [float(np.mean([each.imbalance[way] for each in found])) for way in (0, 1)]
    figures = {
        "time": ("step of the tables", float(np.mean([each.time for each in found]))),
        "balance": ("kernels of the busiest rank above the mean", spread[0] / spread[1]),
        "slow-accesses": ("lookups of host memory", slow[0] / slow[1]),
    }
    for name, (title, predicted) in figures.items():
        yield Figure(
            f"V14-recshard-{name}",
            f"RecShard, whole tables over split ones: {title}",
            "ratio",
            box.RECSHARD_BANDS[name],
            predicted,
            0.0,
            COUNTED + box.RECSHARD_SOURCE if name == "slow-accesses" else box.RECSHARD_SOURCE,
            box.RECSHARD_ASSUMED,
        )


def synthetic(about: box.SkewedTables) -> Workload:
    """A model of the box."""
    draw = np.random.default_rng(about.seed)
    rows = draw.lognormal(0, about.rows_sigma, about.tables)
    pooling = draw.lognormal(0, about.pooling_sigma, about.tables)
    alpha = draw.uniform(*about.alpha, about.tables)
    rows = np.maximum(rows / rows.sum() * about.total_rows, 2)
    pooling = np.maximum(pooling / pooling.mean() * about.mean_pooling, 1)
    tables = tuple(
        Table(int(count), about.dim, round(float(each), 3), round(float(skew), 3))
        for count, each, skew in zip(rows, pooling, alpha, strict=True)
    )
    plain = replace(load_workload("neo-i"), name="recshard-rm", tables=tables, batch=about.batch)
    return plain.with_(**SMALL)


def _compared(lab: Lab, about: box.SkewedTables) -> Compared:
    name, nodes = box.RECSHARD_MACHINE
    start = deployment_of(synthetic(about), lab.machine(name, nodes=nodes))
    whole, hosted = size_greedy(start, about.hbm_gb_per_rank * BYTES_PER_GB)
    split = RecShard(about.hbm_gb_per_rank).apply(start)
    found = [predict_deployment(each, every_rank=True).results[0] for each in (whole, split)]
    hot = hot_fracs(start, about.hbm_gb_per_rank * BYTES_PER_GB * start.ranks)
    pooling = np.array([table.pooling for table in start.workload.tables])
    slow = [float((pooling * cold).sum() / pooling.sum()) for cold in (hosted, 1 - hot)]
    spread = _above_mean(found[0]), _above_mean(found[1])
    return Compared(found[0].step_us / found[1].step_us, spread, (slow[0], slow[1]))


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
