"""Measured collectives: tables of curves, logs of nccl-tests, a file of a machine's points."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from perfmodel import hardware
from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes, write_text
from perfmodel.base.frames import numbers_in, read_frame
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import (
    BRIDGE,
    INFINIBAND,
    MAX_RANKS,
    MESH,
    PCIE,
    SWITCH,
    Calls,
    Fabric,
    calls_of,
)
from perfmodel.cost.collectives.learned import Learned, calibrated, shipped
from perfmodel.errors import ModelError
from perfmodel.ops.rows import MOST, Rows

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("curve_id", "collective", "n_gpus", "n_nodes")
_C = coefficients("collectives.calibrated")
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


OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
}
"""Names of nccl-tests for ops of the vocabulary."""
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|alltoall|broadcast|reduce|sendrecv)"
    r"_(?:perf|bench)\b|#\s*collective\s+test\s+starting\s*:\s*(\w+?)_perf",
    re.IGNORECASE,
)
_NCCL_ROW = re.compile(
    r"\s*(?P<size>[1-9]\d*)\s+\d+\s+(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e[45]m[23])\s"
    r"\s*(?P<rest>.*)"
)
"""A row of nccl-tests that sent something: size count type [redop] [root] time algbw busbw wrong,
the last four again in place."""


@dataclass(frozen=True)
class Point:
    """One measured collective; nodes are 0 where the log does not say."""

    op: str
    ranks: Annotated[int, Meta(ge=2, le=MAX_RANKS)]
    nodes: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    size_bytes: Annotated[float, Meta(ge=1.0, le=MOST)]
    time_us: Annotated[float, Meta(ge=1e-6, le=MOST)]


def parse(
    text: str,
    where: str,
    *,
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> list[Point]:
    """The points of a log, out of place; what it does not say is given by `op ranks nodes`.

    Raises `ModelError` where no points are found, or their op or ranks are unknown.
    """
    points: list[Point] = []
    hosts: dict[int, str] = {}
    current = op
    for number, line in enumerate(text.splitlines(), 1):
        if rank := _RANK.search(line):
            hosts = {} if int(rank[1]) == 0 else hosts
            hosts[int(rank[1])] = rank[2]
            continue
        named = None if op else _NAMED.search(line)
        if named:
            current = OPS.get((named[1] or named[2]).lower().replace("_", ""))
        row = _NCCL_ROW.match(line)
        if row is None:
            continue
        pair = _nccl_pair(row["size"], row["rest"])
        among = ranks or len(hosts)
        if pair is None:
            what = "no time above 0, or data that arrived wrong, where a row of results is expected"
            raise ModelError(f"{where}:{number}: {what}")
        if current is None:
            raise ModelError(f"{where}:{number}: no collective is named: give --collective")
        if among < 2:
            raise ModelError(f"{where}:{number}: the number of ranks is not stated: give --ranks")
        points.append(Point(current, among, nodes or len(set(hosts.values())), *pair))
    if not points:
        raise ModelError(f"{where}: no rows of nccl-tests in it")
    return points


def _nccl_pair(size: str, rest: str) -> tuple[float, float] | None:
    """(bytes, out-of-place us), None for a row whose data arrived wrong. Both ways take three or
    four numbers each, so that an odd one is the root, which old logs lack."""
    words = rest.split()
    if words and words[0].isalpha():  # the operation of a reduction
        words = words[1:]
    try:
        numbers = [float(word) for word in words if word != "N/A"]
    except ValueError:
        return None
    own = numbers[len(numbers) % 2 :]
    is_wrong = "N/A" not in words and len(numbers) >= 4 and own[3:4] >= [1.0]
    if len(numbers) < 3 or is_wrong or not (0 < own[0] <= MOST and float(size) <= MOST):
        return None
    return float(size), own[0]


SCHEMA = "perfmodel.collective-points/1"
NAME = "collective/calibrated"
_MAX_BYTES = 64_000_000


class _File(msgspec.Struct):
    schema: str
    fabric: Fabric
    points: list[Point]


def save_machine(
    path: Path, points: Sequence[Point], fabric: Fabric, about: dict[str, Any]
) -> None:
    """Write `points` and the wires they were measured on, whole or not at all."""
    _calls(points, fabric)
    told = [asdict(point) for point in points]
    content = {"schema": SCHEMA, "about": about, "fabric": asdict(fabric), "points": told}
    write_text(path, json.dumps(content, allow_nan=False) + "\n")


def load_machine(path: Path) -> Learned:
    """The shipped model corrected by the points of a file of `save_machine`.

    Raises `ModelError` for another file.
    """
    try:
        content = msgspec.json.decode(read_bytes(path, max_bytes=_MAX_BYTES), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not a file of collective measurements: {error}") from None
    if content.schema != SCHEMA or not content.points:
        what = f"not a file of collective measurements (schema {content.schema!r:.60})"
        raise ModelError(f"{path}: {what}, or without a point")
    times = np.array([point.time_us for point in content.points])
    return calibrated(shipped(), _calls(content.points, content.fabric), times, NAME)


def _calls(points: Sequence[Point], fabric: Fabric) -> Calls:
    """The calls that were measured; a log without host names filled the nodes one by one."""
    full = fabric.node_ranks
    rows = [asdict(each) | {"nodes": each.nodes or -(-each.ranks // full)} for each in points]
    return calls_of(Rows.of(rows), fabric)
