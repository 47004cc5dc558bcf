"""What evaluations say: predicted beside measured, and the errors of what belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import counted, error_pct

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.evaluation/1"
LEFT_OUT = "left out: "
"""How a warning begins that says why something was not evaluated."""
DECIMALS = 4
GMAE_OFFSET = 4e-4
"""Keeps single exact rows from deciding a geometric mean. Source: Lin et al. 2022."""


@dataclass(frozen=True)
class Errors:
    """The answer of one kind of evaluation, as its JSON Schema in `docs/schemas` has it: `rows`,
    and in `more` what sums them up."""

    schema: str
    rows: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __repr__(self) -> str:
        return f"Errors({counted(len(self.rows), 'row')}, {counted(len(self.warnings), 'warning')})"

    def to_dict(self) -> dict[str, Any]:
        return {"schema": self.schema, **self.more, "rows": self.rows, "warnings": self.warnings}

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        return table_html([[*row.values()] for row in self.rows], [*self.rows[0]], "Errors")


def error_figures(
    predicted: Floats, measured: Floats, low: Floats | None = None, high: Floats | None = None
) -> dict[str, float]:
    """Errors in percent of what was measured, all `[n]` in one unit.

    `mape_pct` is the mean of absolute errors, `gmae_pct` their geometric mean, `median_pct`,
    `p90_pct` and `worst_pct` their quantiles; `bias_pct` is the mean error with its sign,
    `median_bias_pct` the median one, `total_pct` that of all together, which were measured as
    `measured_us`. With the ends of 90 % intervals, `coverage_frac` is the share that they hold, and
    `width_frac` their mean width over the prediction.
    """
    error = predicted / measured - 1.0
    size = np.abs(error)
    figures = {
        "mape_pct": size.mean(),
        "gmae_pct": np.exp(np.log(size + GMAE_OFFSET).mean()),
        "median_pct": np.median(size),
        "p90_pct": np.quantile(size, 0.9),
        "worst_pct": size.max(),
        "bias_pct": error.mean(),
        "median_bias_pct": np.median(error),
        "total_pct": predicted.sum() / measured.sum() - 1.0,
    }
    found = {name: float(100.0 * each) for name, each in figures.items()}
    found["measured_us"] = float(measured.sum())
    if low is not None and high is not None:
        found["coverage_frac"] = float(((low <= measured) & (measured <= high)).mean())
        found["width_frac"] = float(((high - low) / predicted).mean())
    return found


def error_rows(
    frame: pd.DataFrame, by: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each group of `frame` (`predicted_us measured_us`, where known `low_us high_us`)
    that has the columns `by` in common: these, `n`, and the figures `names`."""
    columns = [
        name for name in ("predicted_us", "measured_us", "low_us", "high_us") if name in frame
    ]
    rows = []
    for key, own in frame.groupby(list(by), sort=True):
        figures = error_figures(*own[columns].to_numpy(np.float64).T)
        rounded = {name: round(figures[name], DECIMALS) for name in names}
        rows.append(dict(zip(by, key, strict=True)) | {"n": len(own), **rounded})
    return rows


def compared(
    predicted_us: float, low_us: float, high_us: float, measured_us: float | None
) -> dict[str, Any]:
    """A prediction with its 90 % interval beside what was measured, if that is known."""
    return {
        "predicted_us": predicted_us,
        "low_us": low_us,
        "high_us": high_us,
        "measured_us": measured_us,
        "error_pct": error_pct(predicted_us, measured_us),
        "within": None if measured_us is None else low_us <= measured_us <= high_us,
    }


class Kind(StrEnum):
    """What a row's error is of, and what the prediction had seen."""

    STEP_REPLAY = "step_replay"
    """Step time replayed: it sees the step's own durations; only waits are predicted."""
    STEP_LEFT_OUT = "step_left_out"
    """Step time with the durations of host and device taken from the other steps."""
    NULL = "null"
    """What no model is needed for: the mean of the other steps."""
    SHAPES = "shapes"
    """A rank's device time of the ops of one family, from their shapes alone."""
    MODEL = "model"
    """A rank's step, or its GPU-active time, on its own device in mode `model`."""


FIGURES = ("mape_pct", "median_pct", "worst_pct", "bias_pct")
Pair = tuple[Kind, str, Floats, Floats]
"""Of one trace: the kind and name of what was predicted, the predictions and the measurements, of
equal shapes in one unit."""


def rows_of(trace: str, *pairs: Pair) -> list[dict[str, Any]]:
    """A row of errors over the steps and ranks of `trace` for each of `pairs`.

    What is not a number on either side, or was measured as 0, has no error and does not count.
    """
    rows = []
    for kind, name, predicted, measured in pairs:
        predicted, measured = np.ravel(predicted), np.ravel(measured)
        known = np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)
        if known.any():
            figures = error_figures(predicted[known], measured[known])
            rounded = {each: round(figures[each], DECIMALS) + 0.0 for each in FIGURES}
            about = {"trace": trace, "kind": kind.value, "name": name, "n": int(known.sum())}
            rows.append(about | rounded)
    return rows
