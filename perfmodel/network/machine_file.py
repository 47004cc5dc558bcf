"""Points measured on one machine, with its wires: plain JSON that corrects a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from perfmodel.ops.rows import MOST, Rows

SCHEMA = "perfmodel.collective-points/1"
NAME = "collective/calibrated"
_MOST_BYTES = 64_000_000
_MOST_RANKS = 1_000_000
_COUNT, _RATE = (1, _MOST_RANKS), (0.0, 1e6)
_WIRES: Mapping[str, Any] = {
    "link": str,
    "link_gb_per_s": _RATE,
    "domain_ranks": _COUNT,
    "node_ranks": _COUNT,
    "architecture": str,
    "has_multicast": bool,
    "network": str | None,
    "node_nic_gb_per_s": _RATE,
    "nics": (0, _MOST_RANKS),
    "link_peers": (1, _MOST_RANKS),
    "exchange_frac": (1e-3, 1.0),
}
_OPTIONAL = ("link_peers", "exchange_frac")
_POINT: Mapping[str, Any] = {
    "op": str,
    "ranks": (2, _MOST_RANKS),
    "nodes": (0, _MOST_RANKS),
    "size_bytes": (1.0, MOST),
    "time_us": (1e-6, MOST),
}
"""Field to its type, or to the least and most of a number; `_OPTIONAL` ones may also be None."""


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
        _check(fabric, _WIRES)
        points = [Point(**each) for each in found["points"]]
        for point in points:
            _check(point, _POINT)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: no points of collectives: {error!r}") from None
    times = np.array([point.time_us for point in points])
    if not len(times):
        raise ModelError(f"{path}: holds no point")
    calls: Calls = calls_of(rows_of(points, fabric), fabric)
    return calibrated(base or shipped(), calls, times, NAME)


def _check(record: Fabric | Point, expected: Mapping[str, Any]) -> None:
    """Raise `ValueError` that names the first field that is not what is expected."""
    for name, kind in expected.items():
        value = getattr(record, name)
        if not isinstance(kind, tuple):
            if not isinstance(value, kind):
                raise ValueError(f"{name} is {value!r:.40}")
            continue
        least, most = kind
        is_number = isinstance(value, (int, type(least))) and not isinstance(value, bool)
        if value is None and name in _OPTIONAL:
            continue
        if not is_number or not least <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}; expected a number from {least} to {most}")
