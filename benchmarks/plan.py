"""How long a plan takes, and how near its lower bound the search comes.

    python -m benchmarks.plan [TABLES [NODES]]

Tables differ in rows, width, pooling and skew; nodes are ZionEX's, of 8 GPUs each (1,000 tables on
16 nodes unless told). Prints seconds of the wall clock and of the processor, the predicted steps of
this planner's and of TorchRec's layout, and the gap to the bound.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from benchmarks.published.torchrec_formulas import torchrec_plan
from perfmodel.designs import Deployment, deployment_of
from perfmodel.explore.planner import plan_deployment
from perfmodel.hardware import Cluster, cluster, load
from perfmodel.workload import load_workload
from perfmodel.workload.tables import Table

BATCH_PER_RANK = 128
SEED = 1
ZIONEX_ROWS_LOG10 = (4.0, 7.3)


def mix(
    tables: int,
    seed: int,
    machine: Cluster,
    per_rank: int,
    rows_log10: tuple[float, float] = (3.0, 7.3),
) -> Deployment:
    """Tables of many sizes, most with few lookups and some with many; `per_rank` samples each."""
    draw = np.random.default_rng(seed)
    made = tuple(
        Table(
            rows=int(10 ** draw.uniform(*rows_log10)),
            dim=int(draw.choice([32, 64, 128])),
            pooling=float(np.clip(draw.lognormal(1.5, 1.2), 1, 150)),
            alpha=round(float(draw.uniform(0.6, 1.2)), 3),
        )
        for _ in range(tables)
    )
    workload = replace(load_workload("neo-i"), name="mixed", tables=made).with_(
        model__bottom_mlp=[512, 128],
        model__top_mlp=[512, 256, 1],
        implementation__sharding="balanced",
    )
    return deployment_of(workload, machine, per_rank * machine.gpus)


def main() -> None:
    given = [int(text) for text in sys.argv[1:3]]
    tables, nodes = given + [1000, 16][len(given) :]
    machine = cluster(load("zionex"), nodes)
    start = mix(tables, SEED, machine, BATCH_PER_RANK, ZIONEX_ROWS_LOG10)
    began, used = time.perf_counter(), time.process_time()
    ours = plan_deployment(start)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - used
    theirs_us = torchrec_plan(start).step_us
    print(f"{tables} tables on {start.ranks} GPUs: {wall_s:.1f} s ({cpu_s:.1f} s of processor)")
    print(f"step {ours.result.step_us / 1e3:.3f} ms, by TorchRec's planner ", end="")
    print(f"{theirs_us / 1e3:.3f} ms ({theirs_us / ours.result.step_us:.2f})")
    print(f"search {ours.gap_frac:.1%} above its lower bound")


if __name__ == "__main__":
    main()
