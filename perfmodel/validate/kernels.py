"""Errors of kernel models on measurement tables, per op, device and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.duration import Models, durations
from perfmodel.fit.kernel_data import devices_of, joined, read_table
from perfmodel.fit.kernel_errors import KernelErrors, errors_of
from perfmodel.validate.types import SCHEMA

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class KernelEvaluation:
    """Errors per op, device and dtype; `points` are the single rows behind them."""

    rows: tuple[KernelErrors, ...]
    points: pd.DataFrame = field(repr=False)
    """`op device dtype measured_us predicted_us low_us high_us`, a line per measured row."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON answer of `perfmodel evaluate kernels`."""
        return {"schema": SCHEMA, "rows": [asdict(row) for row in self.rows]}

    def to_frame(self) -> pd.DataFrame:
        """One line per row."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def plot(self) -> Figure:
        """Predicted over measured of every row, coloured by op, with its interval."""
        from perfmodel.plot import errors_figure

        return errors_figure(self.points.rename(columns={"op": "group"}), title="Kernels")


def evaluate_kernels(paths: Sequence[Path], models: Models | None = None) -> KernelEvaluation:
    """Errors on every row of the tables at `paths`, with `models` or the default ones.

    Raises `ModelError` for a table or a row that cannot be used, `HardwareError` for an unknown
    device.
    """
    frame = joined([read_table(Path(path)) for path in paths])
    known = devices_of(frame["device"])
    rows: list[KernelErrors] = []
    points: list[pd.DataFrame] = []
    for name, measured in frame.groupby("device", sort=True):
        predicted = durations(measured, known[name], models=models)
        points.append(_points(measured, predicted))
        for (op, dtype), index in measured.groupby(["op", "dtype"], sort=True).groups.items():
            rows.append(
                errors_of(
                    (op, name, dtype),
                    measured.loc[index, "duration_us"].to_numpy(np.float64),
                    *(
                        predicted.loc[index, name].to_numpy(np.float64)
                        for name in ("duration_us", "low_us", "high_us")
                    ),
                )
            )
    return KernelEvaluation(tuple(rows), _together(points))


def _points(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """One device's rows: what they are, what was measured, what was predicted."""
    named = measured[["op", "device", "dtype"]].assign(measured_us=measured["duration_us"])
    times = predicted[["duration_us", "low_us", "high_us"]]
    return named.join(times.rename(columns={"duration_us": "predicted_us"}))


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)
