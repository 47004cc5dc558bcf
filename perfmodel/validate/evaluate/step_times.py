"""Step times predicted from shapes, against those that were measured without a profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.cpu.parameters import remarks
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Device, Node
from perfmodel.prediction.run import predict
from perfmodel.validate.calibrate.cpu_step import PredictedStep, predict_step
from perfmodel.validate.calibrate.tables import MeasuredStep
from perfmodel.validate.evaluate.results import Compared, Tabular, figures_of
from perfmodel.workload import op_graph
from perfmodel.workload.model import with_settings

SCHEMA = "perfmodel.evaluation.steps/1"


@dataclass(frozen=True, kw_only=True)
class StepError(Compared):
    """One configuration. `spread_pct` is the measurement's own: by how much two halves of its
    rounds differ.
    """

    name: str
    ranks: int
    spread_pct: float | None

    def to_dict(self) -> dict[str, Any]:
        keys = (
            *("name", "ranks", "predicted_us", "low_us", "high_us", "measured_us", "error_pct"),
            *("within", "spread_pct"),
        )
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class StepErrors(Tabular):
    """All configurations of a table on one device."""

    device: str
    rows: tuple[StepError, ...]
    warnings: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, float | int | None]:
        """Errors of the steps as they are predicted, and the measurements' median spread."""
        spreads = [row.spread_pct for row in self.rows if row.spread_pct is not None]
        spread_pct = float(np.median(spreads)) if spreads else None
        return figures_of(self.rows) | {"spread_pct": spread_pct}

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "device": self.device,
            "summary": self.summary(),
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
    rows = []
    for step in begun(steps, begin, lambda step: step.name):
        try:
            if isinstance(machine, Node):
                predicted = _on_gpu(step, machine, overheads)
            else:
                predicted = predict_step(step, machine)
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        rows.append(
            StepError(
                name=step.name,
                ranks=step.ranks,
                spread_pct=None if blind or np.isnan(step.halves_frac) else 100 * step.halves_frac,
                measured_us=None if blind else step.step_us,
                predicted_us=predicted.duration_us,
                low_us=predicted.low_us,
                high_us=predicted.high_us,
            )
        )
    device = machine.device if isinstance(machine, Node) else machine
    return StepErrors(machine.name, tuple(rows), remarks(device))


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
