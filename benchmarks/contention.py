"""Whether two processes on one socket slow each other down: operators of one thread in each.

`python benchmarks/contention.py [ROUNDS]`; needs PyTorch and two cores. In slices of time either
process calls an operator alone, then both do, each on its own core and data. Printed is the time
beside the other over that alone, 10th percentiles. On a machine that is busy, alone is not alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
import torch.multiprocessing as mp

SLICE_S = 0.025
DIM, BAGS, POOLING, BATCHES = 64, 256, 20, 64
TABLES = {"in L2": 4_000, "half the L3": 50_000, "beyond the L3": 400_000}
STREAMS = {"0.5 MB": 1 << 16, "12 MB": 1 << 20, "48 MB": 1 << 22}


def operators() -> dict[str, Callable[[], object]]:
    """A matrix product, additions, lookups and updates of rows."""
    a, b, rows = torch.rand(256, 256), torch.rand(256, 256), torch.rand(BAGS * POOLING, DIM)
    found: dict[str, Callable[[], object]] = {"product of 256": lambda: torch.mm(a, b)}
    for name, count in STREAMS.items():
        x, y, out = torch.rand(count), torch.rand(count), torch.empty(count)
        found[f"add, {name}"] = lambda x=x, y=y, out=out: torch.add(x, y, out=out)
    for name, count in TABLES.items():
        table = torch.rand(count, DIM)
        batches = cycle([torch.randint(0, count, (BAGS, POOLING)) for _ in range(BATCHES)])
        found[f"lookup, {name}"] = lambda t=table, i=batches: torch.nn.functional.embedding_bag(
            next(i), t, mode="sum"
        )
        found[f"update, {name}"] = lambda t=table, i=batches: t.index_add_(
            0, next(i).view(-1), rows
        )
    return found


def measure(rank: int, begin_s: float, rounds: int, answers: mp.Queue) -> None:
    """One process: its own slices, and those that it shares."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank})
    listed, at_s = operators(), begin_s
    taken: dict[tuple[str, bool], list[float]] = {}
    for name, call in list(listed.items()) * rounds:
        for phase in (0, 1, None):
            at_s += SLICE_S
            time.sleep(max(at_s - time.time(), 0.0))
            while phase in (rank, None) and time.time() < at_s + 0.9 * SLICE_S:
                before_ns = time.perf_counter_ns()
                call()
                took_us = (time.perf_counter_ns() - before_ns) / 1e3
                taken.setdefault((name, phase is None), []).append(took_us)
    answers.put({key: float(np.quantile(times, 0.1)) for key, times in taken.items()})


def main() -> int:
    """Run both, and print the ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    context = mp.get_context("spawn")
    answers, begin_s = context.Queue(), time.time() + 8
    processes = [
        context.Process(target=measure, args=(rank, begin_s, rounds, answers)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    both = [answers.get() for _ in processes]
    for name, _ in dict.fromkeys((key[0], 0) for key in both[0]):
        ratios = ", ".join(f"{low[name, True] / low[name, False]:.2f}" for low in both)
        print(f"{name:24} {both[0][name, False]:8.1f} us alone, beside the other: {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
