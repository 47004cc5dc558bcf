"""Step times predicted from shapes, against those that were measured without a profiler.

A comparison is made twice: raw, and on the device as fast as the reference work says that it was
while the step was measured (`perfmodel/validate/calibrate/cpu_step.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.cpu.drift import drifted
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Device, Node
from perfmodel.prediction.run import predict
from perfmodel.validate.calibrate.cpu_step import (
    PredictedStep,
    StepDrifts,
    drift_of_steps,
    predict_step,
)
from perfmodel.validate.calibrate.tables import MeasuredStep
from perfmodel.validate.evaluate.results import Compared, Tabular, figures_of
from perfmodel.workload import op_graph
from perfmodel.workload.model import with_settings

SCHEMA = "perfmodel.evaluation.steps/1"


@dataclass(frozen=True, kw_only=True)
class StepError(Compared):
    """One configuration. `spread_pct` is the measurement's own: by how much two halves of its
    rounds differ. `referenced` is the same on the machine as fast as its reference work was then.
    """

    name: str
    ranks: int
    spread_pct: float | None
    referenced: Compared | None = None

    @property
    def drift_ratio(self) -> float | None:
        """How much longer the reference work says that this step takes since the calibration."""
        return None if self.referenced is None else self.referenced.predicted_us / self.predicted_us

    @property
    def is_error(self) -> bool | None:
        """Whether the step is further off than the reference moved; None where that is not known.

        What is closer may as well be the machine as the model.
        """
        if self.referenced is None or self.measured_us is None or self.drift_ratio is None:
            return None
        off = log(self.referenced.predicted_us / self.measured_us)
        return abs(off) > abs(log(self.drift_ratio))

    def to_dict(self) -> dict[str, Any]:
        keys = (
            *("name", "ranks", "predicted_us", "low_us", "high_us", "measured_us", "error_pct"),
            *("within", "spread_pct", "drift_ratio", "is_error"),
        )
        moved = {
            f"referenced_{key.removeprefix('predicted_')}": getattr(self.referenced, key, None)
            for key in ("predicted_us", "low_us", "high_us", "error_pct", "within")
        }
        return {key: getattr(self, key) for key in keys} | moved


@dataclass(frozen=True)
class StepErrors(Tabular):
    """All configurations of a table on one device."""

    device: str
    rows: tuple[StepError, ...]
    drift: StepDrifts | None = None

    def summary(self) -> dict[str, float | int | None]:
        """Errors of the steps as they are predicted, and the measurements' median spread."""
        spreads = [row.spread_pct for row in self.rows if row.spread_pct is not None]
        spread_pct = float(np.median(spreads)) if spreads else None
        return figures_of(self.rows) | {"spread_pct": spread_pct}

    def referenced(self) -> dict[str, float | int | None]:
        """The same in units of the reference work, and how many of these are errors."""
        known = [row.referenced for row in self.rows if row.referenced is not None]
        return figures_of(known) | {"errors": sum(bool(row.is_error) for row in self.rows)}

    @property
    def warnings(self) -> list[str]:
        """How far the machine moved, and which comparisons are therefore no errors."""
        if self.drift is None:
            return []
        compared = [row.is_error for row in self.rows if row.is_error is not None]
        lines = list(self.drift.lines)
        if False in compared:
            lines.append(
                f"{compared.count(False)} of {len(compared)} comparisons are not called errors: "
                "the reference moved more than they are off"
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


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    machine: Device | Node,
    *,
    overheads: str | None = None,
    blind: bool = False,
    begin: Begin = silent,
) -> StepErrors:
    """Predictions of `steps` on a CPU, or on a GPU of a node.

    `blind` leaves what was measured out of the answer. `overheads` times a GPU's host, by default
    the profile that fits it. Raises `UsageError` that names the row which cannot be predicted.
    """
    drifts = drift_of_steps(steps, machine) if isinstance(machine, Device) else None
    moved = [None] * len(steps) if drifts is None else drifts.each
    rows = []
    for step, drift in zip(begun(steps, begin, lambda step: step.name), moved, strict=True):
        measured_us, referenced = None if blind else step.step_us, None
        try:
            if isinstance(machine, Node):
                predicted = _on_gpu(step, machine, overheads)
            else:
                predicted = predict_step(step, machine)
                if drift is not None:
                    again = predict_step(step, drifted(machine, drift))
                    referenced = Compared(**_times(again), measured_us=measured_us)
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        rows.append(
            StepError(
                name=step.name,
                ranks=step.ranks,
                spread_pct=None if blind or np.isnan(step.halves_frac) else 100 * step.halves_frac,
                referenced=referenced,
                measured_us=measured_us,
                **_times(predicted),
            )
        )
    return StepErrors(machine.name, tuple(rows), drifts)


def _times(step: PredictedStep) -> dict[str, float]:
    return {"predicted_us": step.duration_us, "low_us": step.low_us, "high_us": step.high_us}


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
