"""Step times predicted from shapes, against those that were measured without a profiler.

A comparison is made twice: raw, and on the device as fast as the reference work says that it was
while the step was measured (`perfmodel/validate/calibrate/cpu_step.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np

from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.cpu.drift import drifted
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Device, Node
from perfmodel.prediction.run import predict
from perfmodel.validate.calibrate.cpu_step import PredictedStep, drift_of_steps, predict_step
from perfmodel.validate.calibrate.tables import MeasuredStep
from perfmodel.validate.evaluate.results import Errors, compared, figures_of
from perfmodel.workload import op_graph
from perfmodel.workload.model import with_settings

SCHEMA = "perfmodel.evaluation.steps/1"
COLLECTED = {"implementation.name": "pytorch", "training.loss": "bce"}
"""How the collector trains its DLRM."""
_OF_REFERENCED = ("predicted_us", "low_us", "high_us", "error_pct", "within")


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    machine: Device | Node,
    *,
    overheads: str | None = None,
    blind: bool = False,
    begin: Begin = silent,
) -> Errors:
    """Predictions of `steps` on a CPU, or on a GPU of a node.

    `spread_pct` is the measurement's own: by how much two halves of its rounds differ. Where the
    reference work is known, `referenced_...` is the same on the machine as fast as that was then;
    `is_error` says whether the step is further off than the reference moved: what is closer may as
    well be the machine as the model. `blind` leaves what was measured out of the answer.
    `overheads` times a GPU's host, by default the profile that fits it. Raises `UsageError` that
    names the row which cannot be predicted.
    """
    drifts = drift_of_steps(steps, machine) if isinstance(machine, Device) else None
    moved = [None] * len(steps) if drifts is None else drifts.each
    rows: list[dict[str, Any]] = []
    referenced: list[dict[str, Any]] = []
    for step, drift in zip(begun(steps, begin, lambda step: step.name), moved, strict=True):
        measured_us = None if blind else step.step_us
        ratio, is_error, again = None, None, dict.fromkeys(_OF_REFERENCED)
        try:
            if isinstance(machine, Node):
                row = _compared(_on_gpu(step, machine, overheads), measured_us)
            else:
                row = _compared(predict_step(step, machine), measured_us)
                if drift is not None:
                    again = _compared(predict_step(step, drifted(machine, drift)), measured_us)
                    ratio = again["predicted_us"] / row["predicted_us"]
                    if measured_us is not None:
                        off = log(again["predicted_us"] / measured_us)
                        is_error = abs(off) > abs(log(ratio))
                    referenced.append(again | {"is_error": is_error})
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        spread_pct = None if blind or np.isnan(step.halves_frac) else 100 * step.halves_frac
        about = {"name": step.name, "ranks": step.ranks}
        rows.append(
            about
            | row
            | {"spread_pct": spread_pct, "drift_ratio": ratio, "is_error": is_error}
            | {f"referenced_{key.removeprefix('predicted_')}": again[key] for key in _OF_REFERENCED}
        )
    warnings = [] if drifts is None else list(drifts.lines)
    judged = [row["is_error"] for row in rows if row["is_error"] is not None]
    if False in judged:
        warnings.append(
            f"{judged.count(False)} of {len(judged)} comparisons are not called errors: "
            "the reference moved more than they are off"
        )
    spreads = [row["spread_pct"] for row in rows if row["spread_pct"] is not None]
    whole = None if drifts is None else drifts.whole
    more = {
        "device": machine.name,
        "summary": figures_of(rows)
        | {"spread_pct": float(np.median(spreads)) if spreads else None},
        "referenced": figures_of(referenced) | {"errors": judged.count(True)},
        "drift": None if whole is None else whole.to_dict(),
    }
    return Errors(SCHEMA, rows, warnings, more)


def _compared(step: PredictedStep, measured_us: float | None) -> dict[str, Any]:
    return compared(step.duration_us, step.low_us, step.high_us, measured_us)


def _on_gpu(step: MeasuredStep, machine: Node, overheads: str | None) -> PredictedStep:
    """A step that begins on an idle GPU and ends when it is idle again, as it was timed."""
    if step.ranks > 1:
        raise UsageError(f"{step.ranks} ranks: on GPUs, steps of one are predicted here")
    ops = op_graph(with_settings(step.workload, COLLECTED))
    (result,) = predict(ops, hardware=[machine], overheads=overheads).results
    assert result.low_us is not None
    assert result.high_us is not None
    return PredictedStep(result.step_us, result.low_us, result.high_us, {})
