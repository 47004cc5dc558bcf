"""Predicted against measured collectives, one line per curve: the runner of `perfmodel evaluate
collectives`. One table describes curves in words, another holds their points.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from perfmodel import hardware
from perfmodel.base.arrays import Floats
from perfmodel.base.frames import numbers_in, read_frame
from perfmodel.cost.collectives.calibrated import OPS
from perfmodel.cost.collectives.calls import (
    BRIDGE,
    INFINIBAND,
    MESH,
    PCIE,
    SWITCH,
    Calls,
    Fabric,
    calls_of,
)
from perfmodel.cost.collectives.learned import CALIBRATED, SPECS, Learned, calibrated, shipped
from perfmodel.errors import ModelError
from perfmodel.ops.rows import MOST, Rows
from perfmodel.validate.evaluate.results import SCHEMA, Errors, error_figures

NEEDED = ("curve_id", "collective", "n_gpus", "n_nodes")
PCIE_GB_PER_S = 64.0
"""Links up to this rate that no words describe are PCIe: 5.0 with 16 lanes has 63 GB/s."""
UNKNOWN_NIC_GB_PER_S = 25.0
"""assumed: one adapter of 200 Gbit/s per GPU, as in the nodes that most tables are of."""
USUAL_NODE_GPUS = 8.0
"""assumed: of a node, where a table names a network and neither `n_nodes` nor `gpus_per_node`."""
UNKNOWN_LINK_GB_PER_S = 32.0
"""assumed: PCIe 4.0 with 16 lanes, where a row gives no rate of its links."""
_MODEL = re.compile(r"[a-z]+\d+[a-z]*")
_NO_NETWORK = ("", "none", "unknown", "nan")
_BOX = re.compile(r"(\d+) ?x ?[a-z]*\d*", re.IGNORECASE)


@dataclass(frozen=True)
class Wires:
    """What the description of one curve says."""

    op: str
    ranks: float
    nodes: float
    fabric: Fabric

    def calls(self, size_bytes: Floats) -> Calls:
        """The curve's collectives of so many bytes."""
        row = {"op": self.op, "size_bytes": 1.0, "ranks": self.ranks, "nodes": self.nodes}
        one = calls_of(Rows.of([row]), self.fabric)
        return replace(one.take(np.zeros(len(size_bytes), np.int64)), size_bytes=size_bytes)


def wires_of(row: dict[str, Any]) -> Wires:
    """What one row of a table of curves says; raises `ModelError` for what it lacks."""
    where = f"curve {row.get('curve_id')}"
    ranks = _number(row, "n_gpus")
    network = _text(row, "network")
    nodes = _number(row, "n_nodes")
    if not nodes:  # by the GPUs of one, else one unless a network is named
        usual = ranks if network in _NO_NETWORK else USUAL_NODE_GPUS
        each = _number(row, "gpus_per_node") or usual
        nodes = float(np.ceil(ranks / each)) if each >= 1 else 1.0
    if not ranks or ranks < 2 or nodes > ranks:
        raise ModelError(f"{where}: n_gpus is {row.get('n_gpus')}, n_nodes {row.get('n_nodes')}")
    if _text(row, "variant").startswith("custom"):
        raise ModelError(f"{where}: kernels of a framework, not of a library: not modelled")
    gpu = _MODEL.search(_text(row, "gpu").lower().replace("nvidia", "").replace("tesla", ""))
    architecture = _architectures().get(gpu[0], "") if gpu else ""
    words = _text(row, "intra_link")
    rate = _number(row, "intra_gb_per_s_per_gpu")
    lower, is_amd = words.lower(), architecture[:4] == "cdna"
    if "switch" in lower:
        link = SWITCH
    elif "bridge" in lower or "pair" in lower:
        link = BRIDGE
    elif is_amd or "xgmi" in lower or "infinity" in lower or "direct" in lower:
        link = MESH
    elif "pcie" in lower or 0 < rate <= PCIE_GB_PER_S:
        link = PCIE
    else:
        link = MESH if re.search(r"\b4 ?x", lower) else SWITCH
    box, local = _BOX.search(words), ranks / nodes
    domain = local if link == BRIDGE else max(local, float(box[1]) if box else 1.0)
    fabric = Fabric(
        link=link,
        link_gb_per_s=rate or UNKNOWN_LINK_GB_PER_S,
        domain_ranks=ceil(domain),
        node_ranks=ceil(domain),
        architecture=architecture,
        network=INFINIBAND if network in _NO_NETWORK else network,
        node_nic_gb_per_s=_number(row, "node_nic_gb_per_s") or UNKNOWN_NIC_GB_PER_S * local,
        nics=1,
    )
    op = _text(row, "collective")
    return Wires(OPS.get(op, op), ranks, nodes, fabric)


@cache
def _architectures() -> dict[str, str]:
    named = ((_MODEL.match(name), name) for name in hardware.names("device"))
    return {match[0]: hardware.device(name).architecture or "" for match, name in named if match}


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _number(row: dict[str, Any], name: str) -> float:
    """The number there, or 0 where there is none."""
    try:
        value = float(row.get(name) or 0.0)
    except (TypeError, ValueError, OverflowError):
        value = np.inf
    if value < 0 or value > MOST:
        what = f"{name} is {str(row.get(name))[:40]!r}: expected a number from 0 to {MOST:g}"
        raise ModelError(f"curve {row.get('curve_id')}: {what}")
    return 0.0 if np.isnan(value) else value


def read_curves(path: str) -> pd.DataFrame:
    """A table of curves, one per row, by `curve_id`.

    Raises `ModelError` for missing columns and for a curve that is there twice.
    """
    curves = _table(path, NEEDED)
    twice = curves["curve_id"][curves["curve_id"].duplicated()]
    if len(twice):
        raise ModelError(f"{path}: curve {twice.iloc[0][:60]!r} is there twice")
    return curves.set_index("curve_id", drop=False)


def read_points(path: str) -> pd.DataFrame:
    """Measured points (`curve_id size_bytes time_us`) in order of size.

    Those of no bytes or no time are left out. Raises `ModelError` that names the row of one that
    cannot be.
    """
    points = _table(path, ("curve_id", "size_bytes", "time_us"))
    for name in ("size_bytes", "time_us"):
        try:
            points[name] = numbers = numbers_in(points, name)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        for row in np.flatnonzero(~((numbers >= 0) & (numbers <= MOST)))[:1]:
            what = f"{name} is {numbers[row]:g}; expected a number from 0 to {MOST:g}"
            raise ModelError(f"{path}: row {row}: {what}")
    measured = (points["size_bytes"] > 0) & (points["time_us"] > 0)
    return points[measured].sort_values(["curve_id", "size_bytes"], kind="stable")


def _table(path: str, needed: tuple[str, ...]) -> pd.DataFrame:
    frame = read_frame(path, error=ModelError)
    missing = [name for name in needed if name not in frame]
    if missing:
        raise ModelError(f"{path}: lacks the columns {', '.join(missing)}")
    empty = frame["curve_id"].isna().to_numpy()
    if empty.any():
        raise ModelError(f"{path}: row {np.argmax(empty)}: curve_id is missing")
    return frame.assign(curve_id=frame["curve_id"].astype(str))


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
