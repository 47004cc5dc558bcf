"""Losses over `rows x cols` predictions."""

from __future__ import annotations

from perfmodel.ops.spec import OPS
from perfmodel.ops.streaming import rows_cols, streaming

# Two logarithms per element forward, a division backward.
OPS.register("binary_cross_entropy")(
    streaming(
        rows_cols,
        ("rows", "cols"),
        reads=2.0,
        flop=40.0,
        directions=("fwd", "bwd"),
        other_directions={"bwd": streaming(rows_cols, ("rows", "cols"), reads=2.0, flop=4.0)},
    )
)
