"""Points measured on one machine, with its wires: plain JSON that corrects a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.files import read_bytes, write_text
from perfmodel.network.calibrated import Calibrated, calibrated
from perfmodel.network.calls import Calls, calls_of
from perfmodel.network.fabric import Fabric
from perfmodel.network.learned import Learned
from perfmodel.network.logs import Point
from perfmodel.network.store import shipped
from perfmodel.ops.rows import Rows

SCHEMA = "perfmodel.collective-points/1"
NAME = "collective/calibrated"
_MOST_BYTES = 64_000_000


def rows_of(points: Sequence[Point], fabric: Fabric) -> Rows:
    """The calls that were measured; a log without host names filled the nodes one by one."""
    return Rows.of(
        [
            {
                "op": point.op,
                "size_bytes": point.size_bytes,
                "ranks": point.ranks,
                "nodes": point.nodes or -(-point.ranks // fabric.node_ranks),
            }
            for point in points
        ]
    )


def save_machine(
    path: Path, points: Sequence[Point], fabric: Fabric, about: dict[str, Any]
) -> None:
    """Write `points` and the wires they were measured on, whole or not at all."""
    calls_of(rows_of(points, fabric), fabric)
    content = {
        "schema": SCHEMA,
        "about": about,
        "fabric": asdict(fabric),
        "points": [asdict(point) for point in points],
    }
    write_text(path, json.dumps(content, allow_nan=False) + "\n")


def load_machine(path: Path, base: Learned | None = None) -> Calibrated:
    """`base` (the shipped model) corrected by the points of a file of `save_machine`.

    Raises `ModelError` for another file.
    """
    try:
        found = json.loads(read_bytes(path, max_bytes=_MOST_BYTES))
        if found["schema"] != SCHEMA:
            raise ModelError(f"{path}: no points of collectives (schema {found['schema']!r})")
        known = {each.name for each in fields(Fabric)}
        fabric = Fabric(
            **{name: found["fabric"][name] for name in found["fabric"] if name in known}
        )
        points = [
            Point(
                str(each["op"]),
                int(each["ranks"]),
                int(each["nodes"]),
                float(each["size_bytes"]),
                float(each["time_us"]),
            )
            for each in found["points"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: no points of collectives: {error!r}") from None
    times = np.array([point.time_us for point in points])
    if not len(times) or not (np.isfinite(times) & (times > 0)).all():
        raise ModelError(f"{path}: a time is not above 0, or there is none")
    calls: Calls = calls_of(rows_of(points, fabric), fabric)
    return calibrated(base or shipped(), calls, times, NAME)
