"""CPU time of copying rows between tables one by one in Python, as FAE's repository does.

    python benchmarks/rows_by_python.py >> traces/rows_by_python.csv

Needs PyTorch alone, of any version. Both tables are on the CPU, where FAE's hot rows are on a GPU.
`there` is from the model's tables to the hot rows, `back` the other way, by way of an array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import thread_time_ns

import torch

ROWS, DIM, COPIED, REPEATS = 1000000, 16, 20000, 7


def main() -> None:
    """One line of the table per direction, the least of the repeats."""
    torch.set_num_threads(1)
    tables = [torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in range(2)]
    hot = torch.nn.EmbeddingBag(COPIED, DIM, mode="sum", sparse=True)
    rows = torch.randperm(ROWS)[:COPIED].tolist()
    places = {(number % 2, row): number for number, row in enumerate(rows)}

    def there() -> None:
        for (table, row), place in places.items():
            hot.weight.data[place] = tables[table].weight.data[row]

    def back() -> None:
        held = hot.weight.detach().numpy()
        for (table, row), place in places.items():
            tables[table].weight.data[row] = torch.tensor(held[place])

    ways: dict[str, Callable[[], None]] = {"there": there, "back": back}
    for name, copy in ways.items():
        least = sys.maxsize
        for _ in range(REPEATS):
            before = thread_time_ns()
            copy()
            least = min(least, thread_time_ns() - before)
        sys.stdout.write(f"{torch.__version__},{name},{least / COPIED / 1e3:.3g}\n")


if __name__ == "__main__":
    main()
