"""Step times predicted from shapes, against those that were measured without a profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.calibrate.cpu_step import predict_step
from perfmodel.calibrate.step_table import MeasuredStep
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Device

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.evaluation.steps/1"


@dataclass(frozen=True)
class StepError:
    """One configuration: predicted with its 90 % interval, and measured; microseconds.

    `spread_pct` is the measurement's own: by how much two halves of its rounds differ.
    """

    name: str
    ranks: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float | None
    spread_pct: float | None

    @property
    def error_pct(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        if self.measured_us is None:
            return None
        return 100 * (self.predicted_us / self.measured_us - 1)

    @property
    def within(self) -> bool | None:
        """Whether the interval holds what was measured."""
        return None if self.measured_us is None else self.low_us <= self.measured_us <= self.high_us

    def to_dict(self) -> dict[str, Any]:
        """As `docs/schemas/evaluation.steps.json` has it."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "predicted_us": self.predicted_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "measured_us": self.measured_us,
            "error_pct": self.error_pct,
            "within": self.within,
            "spread_pct": self.spread_pct,
        }


@dataclass(frozen=True)
class StepErrors:
    """All configurations of a table on one device."""

    device: str
    rows: tuple[StepError, ...]

    @property
    def errors_pct(self) -> list[float]:
        """Absolute errors of those that were measured."""
        return [abs(row.error_pct) for row in self.rows if row.error_pct is not None]

    def summary(self) -> dict[str, float | int | None]:
        """Median, 90th percentile and worst error, bias, and how many intervals hold."""
        errors = self.errors_pct
        if not errors:
            return {"n": 0} | dict.fromkeys(_SUMMARY)
        signed = [row.error_pct for row in self.rows if row.error_pct is not None]
        spreads = [row.spread_pct for row in self.rows if row.spread_pct is not None]
        return {
            "n": len(errors),
            "median_pct": float(np.median(errors)),
            "p90_pct": float(np.quantile(errors, 0.9)),
            "worst_pct": float(max(errors)),
            "bias_pct": float(np.mean(signed)),
            "coverage_frac": float(np.mean([bool(row.within) for row in self.rows])),
            "spread_pct": float(np.median(spreads)) if spreads else None,
        }

    def to_dict(self) -> dict[str, Any]:
        """As `docs/schemas/evaluation.steps.json` has it."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "summary": self.summary(),
            "rows": [row.to_dict() for row in self.rows],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows])


_SUMMARY = ("median_pct", "p90_pct", "worst_pct", "bias_pct", "coverage_frac", "spread_pct")


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    device: Device,
    *,
    blind: bool = False,
    begin: Callable[[str, int], None] = lambda name, position: None,
) -> StepErrors:
    """Predictions of `steps` on `device`; `blind` leaves what was measured out of the answer."""
    found = []
    for position, step in enumerate(steps):
        begin(step.name, position)
        try:
            predicted = predict_step(step, device)
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        spread = None if np.isnan(step.halves_frac) else 100 * step.halves_frac
        found.append(
            StepError(
                name=step.name,
                ranks=step.ranks,
                predicted_us=predicted.duration_us,
                low_us=predicted.low_us,
                high_us=predicted.high_us,
                measured_us=None if blind else step.step_us,
                spread_pct=None if blind else spread,
            )
        )
    return StepErrors(device.name, tuple(found))
