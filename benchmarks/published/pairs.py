"""One program traced on two machines, each trace moved to the other's device and compared.

python -m benchmarks.published.pairs ONE OTHER ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.prediction import predict
from perfmodel.prediction.result import recorded_figures
from perfmodel.prediction.transferred import source_machine
from perfmodel.prediction.types import Result
from perfmodel.timeline.schedule import measured, steady_steps
from perfmodel.trace import Trace, read
from perfmodel.validate.evaluate.results import Errors, error_pct

SCHEMA = "perfmodel.evaluation.pairs/1"
STEP, GPU_ACTIVE, _ = TIMES = ("step", "gpu_active", "gpu_idle")


def evaluate_pairs(
    paths: Sequence[str | Path], *, max_bytes: int = DEFAULT_MAX_BYTES, begin: Begin = silent
) -> Errors:
    """`paths` by twos: the same program on two machines, moved both ways.

    Each direction has the step, and when its device was active and idle (`times`, of the slowest
    rank), and device time per kernel family (`families`, longest first): predicted, in the trace
    that was moved (`source_us`), and measured. Raises `UsageError` for a path without its pair and
    for a pair on one device, `TraceError` for traces that cannot be read or name no GPU.
    """
    if not paths or len(paths) % 2:
        raise UsageError(f"{len(paths)} traces: expected pairs, each of one program on two GPUs")
    directions: list[dict[str, Any]] = []
    for one, other in zip(begun(paths[::2], begin), paths[1::2], strict=True):
        sides = [_side(path, max_bytes) for path in (one, other)]
        if sides[0].device == sides[1].device:
            raise UsageError(f"{one} and {other}: both ran on {sides[0].device.name}")
        directions += [_transferred(*sides), _transferred(*reversed(sides))]
    summary: dict[str, float] = {"n": len(directions)}
    for name in (STEP, GPU_ACTIVE):
        rows = [each["times"][TIMES.index(name)] for each in directions]
        for key, what in (("error_pct", "pct"), ("same_error_pct", "same_pct")):
            known = [abs(row[key]) for row in rows if row[key] is not None]
            summary[f"{name}_{what}"] = float(np.mean(known)) if known else float("nan")
    summary["coverage_frac"] = float(np.mean([each["within"] for each in directions]))
    rows = [
        {key: each[key] for key in ("trace", "source", "target")} | moved
        for each in directions
        for moved in (*each["times"], *each["families"])
    ]
    return PairErrors(SCHEMA, rows, more={"summary": summary, "directions": directions})


class PairErrors(Errors):
    """Rows are those of the frame: the JSON has them by direction."""

    def to_dict(self) -> dict[str, Any]:
        return {"schema": self.schema, **self.more}


class _Side(NamedTuple):
    trace: Trace
    device: Device
    result: Result


def _side(path: str | Path, max_bytes: int) -> _Side:
    trace = read(path, max_bytes=max_bytes)
    machine = source_machine(trace, "so there is nothing to move it to or from")
    return _Side(trace, machine.node.device, predict(trace).results[0])


def _transferred(source: _Side, target: _Side) -> dict[str, Any]:
    result = predict(source.trace, hardware=target.device.name).results[0]
    graph, rank = result.timeline.graph, result.rank.rank
    marks = np.flatnonzero(graph.marks.rank == rank)[steady_steps(measured(graph))]
    # Of the moved trace, from mark to mark: what the other trace measured is, too.
    moved = recorded_figures(result.timeline, rank, marks)
    here, there = (side.result.rank.measured or {} for side in (source, target))

    def row(name: str, us: float, before_us: float, measured_us: float) -> dict[str, Any]:
        true_us = max(measured_us, 0.0)
        return {
            "name": name,
            "predicted_us": us,
            "source_us": before_us,
            "measured_us": measured_us,
            "error_pct": error_pct(us, true_us),
            "same_error_pct": error_pct(before_us, true_us),
        }

    after, before, true = (
        {each["family"]: each["time_us"] for each in side.families or ()}
        for side in (result, source.result, target.result)
    )
    families = sorted({*after, *true}, key=lambda name: -true.get(name, 0.0))
    assert result.low_us is not None
    assert result.high_us is not None
    return {
        "trace": str(source.trace.source),
        "source": source.device.name,
        "target": target.device.name,
        "low_us": result.low_us,
        "high_us": result.high_us,
        "within": result.low_us <= there["step_us"] <= result.high_us,
        "times": [
            row(name, *(each[f"{name}_us"] for each in (moved, here, there))) for name in TIMES
        ],
        "families": [
            row(name, *(each.get(name, 0.0) for each in (after, before, true))) for name in families
        ],
    }


if __name__ == "__main__":
    print(evaluate_pairs(sys.argv[1:]).to_frame().to_string(index=False))
