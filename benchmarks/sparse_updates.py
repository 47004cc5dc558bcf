"""CPU time of PyTorch's `table.add_(sparse gradient)` on one thread, by rows of the gradient.

    python benchmarks/sparse_updates.py >> traces/sparse_updates.csv

Needs PyTorch alone, of any version: releases up to 1.7 add a gradient row by row, by an operator's
call for each distinct row. `cpu_us` is the least of the repeats, since other processes only add.
"""

from __future__ import annotations

import sys
from time import thread_time_ns

import torch

ROWS, REPEATS = 1000000, 25
SIZES = ((4096, 4096), (4096, 1024), (4096, 64), (1024, 1024), (1024, 64))
"""Lookups, and distinct rows among them."""


def gradient_of(lookups: int, distinct: int, dim: int) -> torch.Tensor:
    """A sparse gradient whose rows lie anywhere, in any order."""
    rows = torch.randperm(ROWS)[:distinct]
    again = rows[torch.randint(0, distinct, (lookups - distinct,))]
    places = torch.cat([rows, again])[torch.randperm(lookups)]
    return torch.sparse_coo_tensor(places[None], torch.ones(lookups, dim), (ROWS, dim))


def main() -> None:
    """One line of the table per size."""
    torch.set_num_threads(1)
    for dim in (16, 64):
        table = torch.zeros(ROWS, dim)
        for lookups, distinct in SIZES:
            gradient, least = gradient_of(lookups, distinct, dim), sys.maxsize
            for _ in range(REPEATS):
                before = thread_time_ns()
                table.add_(gradient, alpha=-0.01)
                least = min(least, thread_time_ns() - before)
            found = f"{torch.__version__},{dim},{lookups},{distinct},{least / 1e3:.4g}"
            sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main()
