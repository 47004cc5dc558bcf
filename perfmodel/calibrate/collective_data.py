"""Measured curves as columns to fit on; what is left out is left out by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.cost.collectives.calls import CUSTOM, NCCL, PCIE, Calls, Texts
from perfmodel.cost.collectives.curves import (
    OPS,
    calls_of_wires,
    read_curves,
    read_points,
    wires_of,
)
from perfmodel.cost.collectives.learned import take_calls
from perfmodel.errors import ModelError

if TYPE_CHECKING:
    import pandas as pd


MIN_BYTES = 512
SCORED_BYTES = 65_536
"""Errors count from this size on."""
MAX_ALIKE = 2
"""Curves of one repository on equal wires that are fitted to; more would outweigh the rest."""
_FLAWS = ("coarse_timer", "reported_slow", "typed_from_excerpt", "host_differs", "uncertain")
_FITTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_SMALL_WEIGHT = 0.3
_FASTER_THAN_WIRES = 0.9


@dataclass(frozen=True)
class Measured:
    """Points of many curves, one per row."""

    calls: Calls
    time_us: Floats
    curve: Texts
    repo: Texts
    alike: Floats
    """How many curves before this one are of its repository and on its wires."""
    weight: Floats
    """Each curve counts alike within its repository, GPU and reach, and these by their root."""

    def __len__(self) -> int:
        return len(self.time_us)

    def take(self, index: Ints) -> Measured:
        """The rows at `index`."""
        columns: tuple[Any, ...] = (self.time_us, self.curve, self.repo, self.alike, self.weight)
        return Measured(take_calls(self.calls, index), *(each[index] for each in columns))

    def where(self, chosen: Mask) -> Measured:
        """The rows that are `chosen`."""
        return self.take(np.flatnonzero(chosen).astype(np.int64))


def read_measured(pairs: Sequence[tuple[str, str]]) -> tuple[Measured, dict[str, str]]:
    """(points of all tables, curve left out to the reason); raises `ModelError` for bad tables.

    `pairs` are a table of curves and a table of points each.
    """
    import pandas as pd

    left_out: dict[str, str] = {}
    frames = []
    for curves_path, points_path in pairs:
        curves = read_curves(curves_path).to_dict("records")
        points = read_points(points_path)[["curve_id", "size_bytes", "time_us"]]
        known = {row["curve_id"] for row in curves}
        strange = next((each for each in points["curve_id"].unique() if each not in known), None)
        if strange is not None:
            raise ModelError(f"{points_path}: {curves_path} does not describe {strange[:60]!r}")
        try:
            reasons = {row["curve_id"]: _flaw(row) for row in curves}
            kept = [row for row in curves if not reasons[row["curve_id"]]]
            wires = list(map(wires_of, kept))
        except ModelError as error:
            raise ModelError(f"{curves_path}: {error}") from None
        left_out |= {curve: reason for curve, reason in reasons.items() if reason}
        texts = {name: [str(row.get(name)) for row in kept] for name in ("gpu", "framework")}
        repos = [str(row.get("repo") or curves_path) for row in kept]
        ids = [row["curve_id"] for row in kept]
        about = pd.DataFrame({"curve_id": ids, "repo": repos, **texts, "wires": wires})
        about["alike"] = about.groupby(["repo", "framework", "wires"], sort=False).cumcount()
        frames.append(points.merge(about, on="curve_id"))
    joined = pd.concat(frames, ignore_index=True)
    joined = joined[joined["size_bytes"] >= MIN_BYTES].reset_index(drop=True)
    if not len(joined):
        raise ModelError(f"{pairs[0][1]}: no points of usable curves")
    calls = calls_of_wires(list(joined["wires"]), joined["size_bytes"].to_numpy(np.float64))
    measured = Measured(
        calls,
        joined["time_us"].to_numpy(np.float64),
        joined["curve_id"].to_numpy(np.str_),
        joined["repo"].to_numpy(np.str_),
        joined["alike"].to_numpy(np.float64),
        _weights(joined),
    )
    impossible = _curves_faster_than_wires(measured)
    left_out |= {str(curve): "faster than its wires" for curve in impossible}
    return measured.where(~np.isin(measured.curve, impossible)), left_out


def _flaw(row: dict[str, object]) -> str:
    flags = str(row.get("quality_flags") or "")
    for flaw in _FLAWS:
        if flaw in flags:
            return flaw
    network = str(row.get("network"))
    if network in ("unknown", "tcp") or "tcp_fallback" in flags:
        return f"network {network}"
    if str(row.get("variant") or "").startswith(CUSTOM) and wires_of(row).link == PCIE:
        return "a framework's collective without links"
    op = str(row.get("collective"))
    return "" if OPS.get(op, op) in _FITTED else f"op {op} is not fitted"


def _weights(points: pd.DataFrame) -> Floats:
    import pandas as pd

    reach = [(each.nodes > 1, each.variant) for each in points["wires"]]
    per_curve = points.groupby("curve_id")["time_us"].transform("size")
    curves = points.groupby(["repo", "gpu", pd.Series(reach)])["curve_id"].transform("nunique")
    small = np.where(points["size_bytes"] < SCORED_BYTES, _SMALL_WEIGHT, 1.0)
    weight = small / (per_curve * np.sqrt(curves))
    library = np.array([each.variant == NCCL for each in points["wires"]])
    return np.asarray(weight / weight[library if library.any() else ~library].mean(), np.float64)


def _curves_faster_than_wires(measured: Measured) -> NDArray[np.str_]:
    calls = measured.calls
    rate = np.where(calls.is_remote, calls.rank_nic_gb_per_s, calls.link_gb_per_s) * 1e3
    least_us = calls.size_bytes / rate
    fast = (calls.op == "send_recv") & (measured.time_us < _FASTER_THAN_WIRES * least_us)
    return np.unique(measured.curve[fast])
