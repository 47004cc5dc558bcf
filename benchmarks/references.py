"""The reference works that ratios are over: fixed, and of the kind of work that they stand for.

They use no code of this project; a change of one makes a new name, since the stored figures
are over the old one.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.drivers.floor import file_type

SEED = 2026


def decoding(path: Path) -> Callable[[], object]:
    """Gunzip a trace and decode its events into typed records: no reader can do with less."""
    import msgspec

    decode = msgspec.json.Decoder(file_type()).decode

    def run() -> object:
        return decode(gzip.decompress(path.read_bytes()))

    return run


def python() -> float:
    """Plain Python: dictionaries, calls, comparisons and floats, within the caches of one core."""

    def later(a: float, b: float) -> float:
        return a if a > b else b

    total = 0.0
    for _ in range(10):
        end: dict[int, float] = {}
        for at in range(2_000):
            end[at] = later(end.get(at - 1, 0.0), end.get(at - 7, 0.0)) + at % 13
        total += sum(value for _, value in sorted(end.items(), key=lambda item: -item[1]))
    return total


def arrays() -> Callable[[], object]:
    """NumPy on columns of 100,000: sort, search, sum up, elementwise."""
    import numpy as np

    values = np.random.default_rng(SEED).random(100_000)

    def run() -> Any:
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(values[order])
        at = np.searchsorted(ends, values * ends[-1])
        return np.log(np.exp(ends / ends[-1]) + np.maximum(values, ends[at])).sum()

    return run


def trees() -> Callable[[], object]:
    """XGBoost alone: 100 rounds on 400 rows of eight figures, on one thread."""
    import numpy as np
    import xgboost

    draw = np.random.default_rng(SEED)
    matrix = draw.random((400, 8))
    data = xgboost.DMatrix(matrix, matrix @ draw.random(8), nthread=1)
    settings = {"max_depth": 6, "nthread": 1, "tree_method": "hist"}
    return partial(xgboost.train, settings, data, 100)


def interpreter() -> object:
    """A Python process that does nothing."""
    return subprocess.run([sys.executable, "-c", ""], check=True, capture_output=True)


def references(trace: Path) -> dict[str, Callable[[], object]]:
    """All of them; `decoding` is of `trace`."""
    return {
        "decoding": decoding(trace),
        "python": python,
        "arrays": arrays(),
        "trees": trees(),
        "interpreter": interpreter,
    }
