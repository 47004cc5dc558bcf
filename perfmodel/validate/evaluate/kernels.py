"""Errors of kernel models on measurement tables, per op, device and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.cost.durations import durations
from perfmodel.cost.gpu.program import shortest_kernel_us
from perfmodel.errors import ModelError
from perfmodel.ops.spec import OPS
from perfmodel.validate.calibrate.kernel_data import LAUNCHED_US, devices_of, joined, read_table
from perfmodel.validate.evaluate.results import SCHEMA, Errors, error_rows

MAX_NAMED = 5
"""Unknown ops that an error names."""
_FIGURES = ("mape_pct", "gmae_pct", "median_pct", "bias_pct", "coverage_frac", "width_frac")


def evaluate_kernels(paths: Sequence[Path]) -> Errors:
    """Errors on every row of the tables at `paths`.

    Raises `ModelError`, naming the file, for a table or an op that cannot be used, `HardwareError`
    for an unknown device.
    """
    import pandas as pd

    tables = [read_table(Path(path)) for path in paths]
    for table in tables:
        unknown = sorted({op for op in table.frame["op"].unique() if op not in OPS})
        if unknown:
            shown = ", ".join(repr(op[:60]) for op in unknown[:MAX_NAMED])
            more = len(unknown) - MAX_NAMED
            raise ModelError(
                f"{table.path}: unknown ops {shown}{f' and {more} more' if more > 0 else ''}; "
                "`perfmodel kernel` lists those that can be predicted"
            )
    frame = joined(tables)
    known = devices_of(frame["device"])
    host = ["device", LAUNCHED_US] if LAUNCHED_US in frame else ["device"]
    parts = []
    for _, own in frame.groupby(host, sort=False, dropna=False):
        part = known[own["device"].iloc[0]]
        launched_us = own[LAUNCHED_US].iloc[0] if LAUNCHED_US in own else np.nan
        if not np.isnan(launched_us):  # the shortest kernel is what the host's smallest call took
            part = replace(part, kernel_floor_us=shortest_kernel_us(launched_us))
        parts.append(durations(own, part))
    times = pd.concat(parts).rename(columns={"duration_us": "predicted_us"})
    measured = frame[["op", "device", "dtype"]].assign(measured_us=frame["duration_us"])
    points = measured.join(times[["predicted_us", "low_us", "high_us"]])
    rows = error_rows(points, ("device", "op", "dtype"), _FIGURES)
    late = sum(len(table.frame) for table in tables) - len(frame)
    said = f"{late:,} rows left out: their launches came late, so that they are host time"
    return Errors(SCHEMA, rows, [said] * bool(late))
