"""Measured curves of collectives: what a description of one says about its wires."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel import hardware
from perfmodel.base.arrays import Floats
from perfmodel.base.frames import numbers_in, read_frame
from perfmodel.cost.coefficients import coefficients
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
from perfmodel.errors import ModelError
from perfmodel.ops.rows import MOST, Rows

if TYPE_CHECKING:
    import pandas as pd


OPS = {"sendrecv": "send_recv", "alltoall": "all_to_all"}
"""Names of nccl-tests for ops of the vocabulary."""
NEEDED = ("curve_id", "collective", "n_gpus", "n_nodes")
_C = coefficients("collectives.curves")
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
        usual = ranks if network in _NO_NETWORK else _C.usual_node_gpus
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
    elif "pcie" in lower or 0 < rate <= _C.pcie_gb_per_s:
        link = PCIE
    else:
        link = MESH if re.search(r"\b4 ?x", lower) else SWITCH
    box, local = _BOX.search(words), ranks / nodes
    domain = local if link == BRIDGE else max(local, float(box[1]) if box else 1.0)
    fabric = Fabric(
        link=link,
        link_gb_per_s=rate or _C.unknown_link_gb_per_s,
        domain_ranks=ceil(domain),
        node_ranks=ceil(domain),
        architecture=architecture,
        network=INFINIBAND if network in _NO_NETWORK else network,
        node_nic_gb_per_s=_number(row, "node_nic_gb_per_s") or _C.unknown_nic_gb_per_s * local,
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
        raise ModelError(
            f"curve {row.get('curve_id')}: {name} is {str(row.get(name))[:40]!r}: expected a "
            f"number from 0 to {MOST:g}"
        )
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
    measured = np.ones(len(points), bool)
    for name in ("size_bytes", "time_us"):
        try:
            numbers = numbers_in(points, name)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        bad = np.flatnonzero(~((numbers >= 0) & (numbers <= MOST)))
        if len(bad):
            raise ModelError(
                f"{path}: row {bad[0]}: {name} is {numbers[bad[0]]:g}; expected a number from 0 to "
                f"{MOST:g}"
            )
        points[name] = numbers
        measured &= numbers > 0
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
