"""Gloo collectives of two ranks over loopback, one thread each: a measurement table as CSV.

`python benchmarks/gloo.py OUT.csv`; needs PyTorch. Robust times (10th percentile) of interleaved
repeats, the slower rank's of each.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = (4, 64, 1_024, 4_096, 16_384, 65_536, 131_072, 262_144, 524_288, 1 << 20, 1 << 21, 1 << 22)
"""fp32 elements of each rank's buffer."""
ROUNDS, PER_ROUND = 12, 4
RANKS = 2


def call(op: str, sent: torch.Tensor, received: torch.Tensor) -> None:
    """One blocking collective."""
    if op == "all_reduce":
        dist.all_reduce(sent)
    else:
        dist.all_to_all_single(received, sent)


def rank(number: int, out: str) -> None:
    """Measure on one of the ranks; rank 0 writes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    buffers = [(torch.ones(n), torch.empty(n)) for n in SIZES]
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for op in ("all_reduce", "all_to_all"):
            for n, (sent, received) in zip(SIZES, buffers, strict=True):
                for _ in range(PER_ROUND):
                    dist.barrier()
                    before_ns = time.perf_counter_ns()
                    call(op, sent, received)
                    took = torch.tensor([(time.perf_counter_ns() - before_ns) / 1e3])
                    dist.all_reduce(took, dist.ReduceOp.MAX)
                    taken.setdefault((op, n), []).append(float(took))
                sent.fill_(1.0)
    if number == 0:
        write(Path(out), taken)
    dist.destroy_process_group()


def write(path: Path, taken: dict[tuple[str, int], list[float]]) -> None:
    """One row per collective and size."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            (
                *("op", "device", "dtype", "direction", "timing", "ranks", "size_bytes"),
                *("duration_us", "median_us", "p90_us", "repeats"),
            )
        )
        for (op, n), times in taken.items():
            low, middle, high = torch.tensor(times).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
            rows.writerow(
                (
                    *(op, "AMD EPYC", "fp32", "fwd", "host_wall_sync", RANKS, 4 * n),
                    *(round(low, 2), round(middle, 2), round(high, 2), len(times)),
                )
            )


if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1],), nprocs=RANKS)
