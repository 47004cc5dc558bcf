"""Step times predicted from shapes, against those that were measured without a profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.cpu.parameters import remarks
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Device, Node
from perfmodel.prediction.run import predict
from perfmodel.validate.calibrate.tables import MeasuredStep, Time, predict_step
from perfmodel.validate.evaluate.results import Errors, compared, error_figures
from perfmodel.workload import op_graph

SCHEMA = "perfmodel.evaluation.steps/1"
COLLECTED = {"implementation__name": "pytorch", "training__loss": "bce"}
"""How the collector trains its DLRM."""


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    machine: Device | Node,
    *,
    overheads: str | None = None,
    blind: bool = False,
    begin: Begin = silent,
) -> Errors:
    """Predictions of `steps` on a CPU, or on a GPU of a node.

    `spread_pct` is the measurement's own: by how much two halves of its rounds differ. `blind`
    leaves what was measured out of the answer. `overheads` times a GPU's host, by default the
    profile that fits it. Raises `UsageError` that names the row which cannot be predicted.
    """
    rows: list[dict[str, Any]] = []
    for step in begun(steps, begin, lambda step: step.name):
        try:
            if isinstance(machine, Node):
                times = _on_gpu(step, machine, overheads)
            else:
                times = predict_step(step, machine)
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        spread_pct = None if blind or np.isnan(step.halves_frac) else 100 * step.halves_frac
        measured_us = None if blind else step.step_us
        rows.append(
            {"name": step.name, "ranks": step.ranks}
            | compared(*times, measured_us)
            | {"spread_pct": spread_pct}
        )
    more = {"device": machine.name, "summary": step_summary(rows)}
    device = machine.device if isinstance(machine, Node) else machine
    return Errors(SCHEMA, rows, remarks(device), more)


def step_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Errors of the rows that were measured, the share of their intervals that hold, and the median
    spread of their measurements."""
    names = ("median_pct", "p90_pct", "worst_pct", "bias_pct", "coverage_frac")
    known = [row for row in rows if row["measured_us"] is not None]
    keys = ("predicted_us", "measured_us", "low_us", "high_us")
    ends = np.array([[row[key] for key in keys] for row in known]).T
    figures: dict[str, float] = error_figures(*ends) if known else {}
    spreads = [row["spread_pct"] for row in known if row["spread_pct"] is not None]
    spread_pct = float(np.median(spreads)) if spreads else None
    return {"n": len(known), **{n: figures.get(n) for n in names}, "spread_pct": spread_pct}


def _on_gpu(step: MeasuredStep, machine: Node, overheads: str | None) -> Time:
    """A step that begins on an idle GPU and ends when it is idle again, as it was timed."""
    if step.ranks > 1:
        raise UsageError(f"{step.ranks} ranks: on GPUs, steps of one are predicted here")
    ops = op_graph(step.workload.with_(**COLLECTED))
    (result,) = predict(ops, hardware=[machine], overheads=overheads).results
    assert result.low_us is not None
    assert result.high_us is not None
    return result.step_us, result.low_us, result.high_us
