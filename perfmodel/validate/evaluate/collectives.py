"""Predicted against measured collectives: one line per curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.cost.collectives.calibrated import read_curves, read_points, wires_of
from perfmodel.cost.collectives.learned import CALIBRATED, SPECS, Learned, calibrated, shipped
from perfmodel.errors import ModelError
from perfmodel.validate.evaluate.results import SCHEMA, Errors, error_figures

MIN_BYTES = 65_536


def evaluate_collectives(
    curves: str, points: str, calibrate: Sequence[float] = (), model: Learned | None = None
) -> Errors:
    """Errors of `model` (the shipped one) on the curves of a table, by the points of another, at
    64 kB and more.

    With sizes to `calibrate` on, each curve's own points of these sizes correct it, and are not
    scored. `bias_pct` is the median of predicted / measured - 1, `note` why a curve says little:
    `tcp`, `network unknown`, flags of its table. Raises `ModelError` for tables that cannot be
    used.
    """
    given = model or shipped()
    described = {row["curve_id"]: row for row in read_curves(curves).to_dict("records")}
    wires, warnings = {}, []
    for curve, row in described.items():
        try:
            wires[curve] = wires_of(row)
        except ModelError as error:
            warnings.append(str(error))
    table = read_points(points)[["curve_id", "size_bytes", "time_us"]]
    strange = set(table["curve_id"]) - set(described)
    if strange:
        warnings.append(f"{points}: {len(strange)} curves that {curves} does not describe")
    table = table[table["curve_id"].isin(list(wires))].reset_index(drop=True)
    sizes, times = (table[name].to_numpy(np.float64) for name in ("size_bytes", "time_us"))
    is_known = np.isin(sizes, np.asarray(calibrate, np.float64))
    rows = []
    for curve, index in table.groupby("curve_id", sort=False).indices.items():
        scored = index[(sizes[index] >= MIN_BYTES) & ~is_known[index]]
        if not len(scored):
            warnings.append(f"{curve}: no points of {MIN_BYTES} bytes and more to score")
            continue
        known, used = index[is_known[index]], given
        if len(known):
            used = calibrated(given, wires[curve].calls(sizes[known]), times[known], given.name)
        answer = used.estimate(wires[curve].calls(sizes[scored]))
        ends = answer.low_us, answer.high_us
        figures = error_figures(answer.duration_us, times[scored], *ends)
        nodes = int(wires[curve].nodes)
        rows.append(
            {
                "curve_id": str(curve),
                "collective": str(described[curve]["collective"]),
                "n": len(scored),
                "median_pct": figures["median_pct"],
                "mape_pct": figures["mape_pct"],
                "bias_pct": figures["median_bias_pct"],
                "within_frac": figures["coverage_frac"],
                "level": CALIBRATED if len(known) else SPECS,
                "nodes": nodes,
                "note": _note(described[curve], nodes),
            }
        )
    if not rows:
        raise ModelError(f"{points}: no points of the curves of {curves} to score")
    more = {"summary": _summary(rows), "calibration_bytes": list(map(float, calibrate))}
    return Errors(SCHEMA, rows, warnings, more)


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per collective and reach, and over all: the median over curves of the median error."""
    import pandas as pd

    each = pd.DataFrame(rows)[["collective", "nodes", "median_pct", "within_frac"]]
    each["where"] = np.where(each["nodes"] == 1, "one node", "several nodes")
    every = each.assign(collective="all")
    groups = pd.concat([each, every, every.assign(where="all")]).groupby(["collective", "where"])
    figures = groups.agg(
        curves=("nodes", "size"),
        median_pct=("median_pct", "median"),
        within_frac=("within_frac", "mean"),
    )
    found: list[dict[str, Any]] = figures.reset_index().to_dict("records")
    return found


def _note(row: Mapping[str, Any], nodes: int) -> str:
    flags, network = str(row.get("quality_flags") or ""), str(row.get("network") or "")
    notes = [] if flags in ("ok", "nan", "") else [flags]
    if not str(row.get("n_nodes")).replace(".", "", 1).isdigit():
        notes.append(f"n_nodes not given: taken as {nodes}")
    if network in ("tcp", "unknown"):
        notes.append(f"network {network}")
    return "; ".join(notes)
