"""Step times predicted from shapes, against those that were measured without a profiler.

A comparison is made twice: raw, and on the device as fast as the reference work says that it was
while the step was measured (`perfmodel/calibrate/drift.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import log
from typing import Any

import numpy as np

from perfmodel.calibrate.cpu_step import PredictedStep, predict_step
from perfmodel.calibrate.drift import StepDrifts, drift_of_steps
from perfmodel.calibrate.step_table import MeasuredStep
from perfmodel.cost.cpu.drift import drifted
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.evaluation.results import Tabular
from perfmodel.hardware import Device, Node
from perfmodel.prediction.run import predict
from perfmodel.progress import Begin, begun, silent
from perfmodel.workload import op_graph
from perfmodel.workload.model import with_settings

SCHEMA = "perfmodel.evaluation.steps/1"


@dataclass(frozen=True)
class StepError:
    """One configuration: predicted with its 90 % interval, and measured; microseconds.

    `spread_pct` is the measurement's own: by how much two halves of its rounds differ.
    `referenced_us`, with its interval, is predicted of the machine as fast as its reference work
    was then; None where that is not known.
    """

    name: str
    ranks: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float | None
    spread_pct: float | None
    referenced_us: float | None = None
    referenced_low_us: float | None = None
    referenced_high_us: float | None = None

    @property
    def error_pct(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        return _error_pct(self.predicted_us, self.measured_us)

    @property
    def within(self) -> bool | None:
        """Whether the interval holds what was measured."""
        return None if self.measured_us is None else self.low_us <= self.measured_us <= self.high_us

    @property
    def drift_ratio(self) -> float | None:
        """How much longer the reference work says that this step takes since the calibration."""
        return None if self.referenced_us is None else self.referenced_us / self.predicted_us

    @property
    def referenced_error_pct(self) -> float | None:
        """The error in units of the reference work."""
        return _error_pct(self.referenced_us, self.measured_us)

    @property
    def referenced_within(self) -> bool | None:
        """Whether the interval in units of the reference work holds what was measured."""
        low, high = self.referenced_low_us, self.referenced_high_us
        if low is None or high is None or self.measured_us is None:
            return None
        return low <= self.measured_us <= high

    @property
    def is_error(self) -> bool | None:
        """Whether the step is further off than the reference moved; None where that is not known.

        What is closer may as well be the machine as the model.
        """
        if self.referenced_us is None or self.measured_us is None or self.drift_ratio is None:
            return None
        return abs(log(self.referenced_us / self.measured_us)) > abs(log(self.drift_ratio))

    def to_dict(self) -> dict[str, Any]:
        keys = (
            *("name", "ranks", "predicted_us", "low_us", "high_us", "measured_us", "error_pct"),
            *("within", "spread_pct", "drift_ratio", "referenced_us", "referenced_low_us"),
            *("referenced_high_us", "referenced_error_pct", "referenced_within", "is_error"),
        )
        return {key: getattr(self, key) for key in keys}


def _error_pct(predicted_us: float | None, measured_us: float | None) -> float | None:
    if predicted_us is None or measured_us is None:
        return None
    return 100 * (predicted_us / measured_us - 1)


@dataclass(frozen=True)
class StepErrors(Tabular):
    """All configurations of a table on one device."""

    device: str
    rows: tuple[StepError, ...]
    drift: StepDrifts | None = None

    @property
    def errors_pct(self) -> list[float]:
        """Absolute errors of those that were measured."""
        return [abs(row.error_pct) for row in self.rows if row.error_pct is not None]

    def summary(self) -> dict[str, float | int | None]:
        """Median, 90th percentile and worst error, bias, and how many intervals hold."""
        signed = [row.error_pct for row in self.rows if row.error_pct is not None]
        within = [bool(row.within) for row in self.rows]
        spreads = [row.spread_pct for row in self.rows if row.spread_pct is not None]
        return _figures(signed, within) | {
            "spread_pct": float(np.median(spreads)) if spreads else None
        }

    def referenced(self) -> dict[str, float | int | None]:
        """The same in units of the reference work, and how many of these are errors."""
        known = [row for row in self.rows if row.referenced_error_pct is not None]
        signed = [row.referenced_error_pct for row in known if row.referenced_error_pct is not None]
        within = [bool(row.referenced_within) for row in known]
        return _figures(signed, within) | {"errors": sum(bool(row.is_error) for row in known)}

    @property
    def warnings(self) -> list[str]:
        """How far the machine moved, and which comparisons are therefore no errors."""
        if self.drift is None:
            return []
        compared = [row.is_error for row in self.rows if row.is_error is not None]
        doubtful = compared.count(False)
        lines = list(self.drift.lines)
        if doubtful:
            lines.append(
                f"{doubtful} of {len(compared)} comparisons are not called errors: the reference "
                "moved more than they are off"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        whole = None if self.drift is None else self.drift.whole
        return {
            "schema": SCHEMA,
            "device": self.device,
            "summary": self.summary(),
            "referenced": self.referenced(),
            "drift": None if whole is None else whole.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "warnings": self.warnings,
        }


def _figures(signed_pct: Sequence[float], within: Sequence[bool]) -> dict[str, float | int | None]:
    names = ("median_pct", "p90_pct", "worst_pct", "bias_pct", "coverage_frac")
    if not signed_pct:
        return {"n": 0} | dict.fromkeys(names)
    sizes = np.abs(signed_pct)
    figures = (np.median(sizes), np.quantile(sizes, 0.9), sizes.max(), np.mean(signed_pct))
    values = map(float, (*figures, np.mean(within)))
    return {"n": len(signed_pct)} | dict(zip(names, values, strict=True))


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    machine: Device | Node,
    *,
    drifts: StepDrifts | None = None,
    overheads: str | None = None,
    blind: bool = False,
    begin: Begin = silent,
) -> StepErrors:
    """Predictions of `steps` on a CPU, or on a GPU of a node.

    `blind` leaves what was measured out of the answer. `overheads` times a GPU's host, by default
    the profile that fits it. Without `drifts` those that the reference work beside steps on a CPU
    tells. Raises `UsageError` that names the row which cannot be predicted.
    """
    result = []
    if isinstance(machine, Device) and drifts is None:
        drifts = drift_of_steps(steps, machine)
    moved = repeat(None, len(steps)) if drifts is None else drifts.each
    for step, drift in zip(begun(steps, begin, lambda step: step.name), moved, strict=True):
        referenced = None
        try:
            if isinstance(machine, Node):
                predicted = _on_gpu(step, machine, overheads)
            else:
                predicted = predict_step(step, machine)
                if drift is not None:
                    referenced = predict_step(step, drifted(machine, drift))
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        spread = None if np.isnan(step.halves_frac) else 100 * step.halves_frac
        result.append(
            StepError(
                name=step.name,
                ranks=step.ranks,
                predicted_us=predicted.duration_us,
                low_us=predicted.low_us,
                high_us=predicted.high_us,
                measured_us=None if blind else step.step_us,
                spread_pct=None if blind else spread,
                referenced_us=None if referenced is None else referenced.duration_us,
                referenced_low_us=None if referenced is None else referenced.low_us,
                referenced_high_us=None if referenced is None else referenced.high_us,
            )
        )
    return StepErrors(machine.name, tuple(result), drifts)


COLLECTED = {"implementation.name": "pytorch", "training.loss": "bce"}
"""How the collector trains its DLRM."""


def _on_gpu(step: MeasuredStep, machine: Node, overheads: str | None) -> PredictedStep:
    """A step that begins on an idle GPU and ends when it is idle again, as it was timed."""
    if step.ranks > 1:
        raise UsageError(f"{step.ranks} ranks: on GPUs, steps of one are predicted here")
    ops = op_graph(with_settings(step.workload, COLLECTED))
    (result,) = predict(ops, hardware=[machine], overheads=overheads).results
    assert result.low_us is not None
    assert result.high_us is not None
    return PredictedStep(result.step_us, result.low_us, result.high_us, {})
