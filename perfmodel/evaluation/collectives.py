"""Predicted against measured collectives: one line per curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.kernel_data import mape_pct
from perfmodel.cost.collectives.calibrated import CALIBRATED, calibrated
from perfmodel.cost.collectives.curves import calls_of_wires, read_curves, read_points, wires_of
from perfmodel.cost.collectives.heuristic import SPECS
from perfmodel.cost.collectives.learned import Learned, shipped, take_calls
from perfmodel.errors import ModelError
from perfmodel.evaluation.results import SCHEMA, Tabular

if TYPE_CHECKING:
    import pandas as pd


MIN_BYTES = 65_536


@dataclass(frozen=True)
class CurveError:
    """Errors of one curve at 64 kB and more; the sizes of the calibration are not among them."""

    curve_id: str
    collective: str
    n: int
    median_pct: float
    mape_pct: float
    bias_pct: float
    """Median of predicted / measured - 1."""
    within_frac: float
    """Share of points inside the 90 % interval."""
    level: str
    """`specs` or `calibrated`."""
    nodes: int
    note: str
    """Why the curve says little: `tcp`, `network unknown`, flags of its table."""


@dataclass(frozen=True)
class CollectiveEvaluation(Tabular):
    """Errors of every curve that has points to score."""

    rows: tuple[CurveError, ...]
    calibration_bytes: tuple[float, ...]
    warnings: list[str] = field(default_factory=list)

    def summary(self) -> list[dict[str, Any]]:
        """Per collective and reach, and over all: the median over curves of the median error."""
        groups: dict[tuple[str, str], list[CurveError]] = {}
        for row in self.rows:
            reach = "one node" if row.nodes == 1 else "several nodes"
            for key in ((row.collective, reach), ("all", reach), ("all", "all")):
                groups.setdefault(key, []).append(row)
        return [
            {
                "collective": collective,
                "where": where,
                "curves": len(rows),
                "median_pct": float(np.median([row.median_pct for row in rows])),
                "within_frac": float(np.mean([row.within_frac for row in rows])),
            }
            for (collective, where), rows in sorted(groups.items())
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rows": [asdict(row) for row in self.rows],
            "summary": self.summary(),
            "calibration_bytes": list(self.calibration_bytes),
            "warnings": self.warnings,
        }


def evaluate_collectives(
    curves: str, points: str, calibrate: Sequence[float] = (), model: Learned | None = None
) -> CollectiveEvaluation:
    """Errors of `model` (the shipped one) on the curves of a table, by the points of another.

    With sizes to `calibrate` on, each curve's own points of these sizes correct it. Raises
    `ModelError` for tables that cannot be used.
    """
    given = model or shipped()
    measured, table, warnings = _joined(curves, points)
    sizes = measured["size_bytes"].to_numpy(np.float64)
    times = measured["time_us"].to_numpy(np.float64)
    calls = calls_of_wires(list(measured["wires"]), sizes)
    is_known = np.isin(sizes, np.asarray(calibrate, np.float64))
    estimate = given.estimate(calls)
    rows = []
    for curve, index in measured.groupby("curve_id", sort=False).indices.items():
        asked = index[(sizes[index] >= MIN_BYTES) & ~is_known[index]]
        if not len(asked):
            warnings.append(f"{curve}: no points of {MIN_BYTES} bytes and more to score")
            continue
        known = index[is_known[index]]
        result, level = estimate, SPECS
        columns = [each[asked] for each in (result.duration_us, result.low_us, result.high_us)]
        if len(known):
            corrected = calibrated(given, take_calls(calls, known), times[known], given.name)
            better = corrected.estimate(take_calls(calls, asked))
            columns, level = [better.duration_us, better.low_us, better.high_us], CALIBRATED
        rows.append(_errors(str(curve), table[str(curve)], times[asked], columns, level))
    if not rows:
        raise ModelError(f"{points}: no points of the curves of {curves} to score")
    return CollectiveEvaluation(tuple(rows), tuple(map(float, calibrate)), warnings)


def _joined(
    curves: str, points: str
) -> tuple[pd.DataFrame, dict[str, Mapping[str, Any]], list[str]]:
    import pandas as pd

    described = {row["curve_id"]: row for row in read_curves(curves).to_dict("records")}
    wires, warnings = {}, []
    for curve, row in described.items():
        try:
            wires[curve] = wires_of(row)
        except ModelError as error:
            warnings.append(str(error))
    about = pd.DataFrame({"curve_id": list(wires), "wires": list(wires.values())})
    result = read_points(points)[["curve_id", "size_bytes", "time_us"]]
    strange = set(result["curve_id"]) - set(described)
    if strange:
        warnings.append(f"{points}: {len(strange)} curves that {curves} does not describe")
    return result.merge(about, on="curve_id").reset_index(drop=True), described, warnings


def _errors(
    curve: str, row: Mapping[str, Any], time_us: Floats, columns: list[Floats], level: str
) -> CurveError:
    predicted, low, high = columns
    error = (predicted / time_us - 1) * 100
    flags = str(row.get("quality_flags") or "")
    notes = [] if flags in ("ok", "nan", "") else [flags]
    nodes = int(wires_of(dict(row)).nodes)
    if not str(row.get("n_nodes")).replace(".", "", 1).isdigit():
        notes.append(f"n_nodes not given: taken as {nodes}")
    network = str(row.get("network") or "")
    if network in ("tcp", "unknown"):
        notes.append(f"network {network}")
    return CurveError(
        curve_id=curve,
        collective=str(row["collective"]),
        n=len(time_us),
        median_pct=float(np.median(np.abs(error))),
        mape_pct=mape_pct(time_us, predicted),
        bias_pct=float(np.median(error)),
        within_frac=float(np.mean((time_us >= low) & (time_us <= high))),
        level=level,
        nodes=nodes,
        note="; ".join(notes),
    )
