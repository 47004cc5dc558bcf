"""Measured collectives: logs of nccl-tests, a file of a machine's points."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from perfmodel.base.files import read_bytes, write_text
from perfmodel.cost.collectives.calls import MAX_RANKS, Calls, Fabric, calls_of
from perfmodel.cost.collectives.learned import Learned, calibrated, shipped
from perfmodel.errors import ModelError
from perfmodel.ops.rows import MOST, Rows

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
