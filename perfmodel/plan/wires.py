"""What exchanges of pooled rows take, as a fixed part and one per byte, at the sizes of a step."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.duration import durations_of
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.prediction.placed import placed

LOW, HIGH = 0.5, 2.0
"""Between these multiples of the usual size the line is exact."""


@dataclass(frozen=True)
class Line:
    """Microseconds of one collective: `fixed_us`, and `us_per_byte` of its size."""

    fixed_us: float = 0.0
    us_per_byte: float = 0.0


def line(
    machine: Cluster, op: str, ranks: int, size_bytes: float, nodes: int | None = None
) -> Line:
    """Of `op` among `ranks`, around `size_bytes` as nccl-tests define it."""
    if ranks <= 1 or size_bytes <= 0:
        return Line()
    rows = [
        {"op": op, "ranks": float(ranks), "size_bytes": max(size_bytes * factor, 1.0)}
        for factor in (LOW, HIGH)
    ]
    if nodes is not None:
        rows = [{**row, "nodes": float(nodes)} for row in rows]
    low_us, high_us = durations_of(placed(Rows.of(rows), machine), machine).duration_us.tolist()
    slope = max(high_us - low_us, 0.0) / (size_bytes * (HIGH - LOW))
    return Line(max(low_us - slope * size_bytes * LOW, 0.0), slope)
