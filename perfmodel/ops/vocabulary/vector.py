"""Elementwise ops. A row is `rows x cols`, whose shape does not matter, or counts `elements`.

`strided` = 1 where operands are not laid out alike (broadcast, transposed, sliced): the kernel then
computes where each element lies, one by one. A broadcast scalar does not count.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.streaming import elements, rows_cols, streaming

ROWS_COLS = ("rows", "cols")
STRIDED = {"strided": 0.0}


def _reads(dims: Dims) -> Floats:
    return dims["reads"]


def _writes(dims: Dims) -> Floats:
    return dims["writes"]


for _name in ("add", "add_inplace", "mul", "div", "pow", "threshold_backward", "silu_and_mul"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, reads=2.0, defaults=STRIDED))
for _name in ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, defaults=STRIDED))
for _name in ("relu", "gelu", "silu", "sigmoid", "tanh"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, defaults=STRIDED))
OPS.register("fill")(streaming(rows_cols, ROWS_COLS, reads=0.0, flop=0.0))
OPS.register("rotary_embedding")(
    streaming(rows_cols, ROWS_COLS, reads=2.0, flop=3.0),
)

# Any other arity: operands of full size, in elements of the row's dtype. One that is broadcast
# counts for the share that it is of a full one, one of another dtype for its share of bytes.
OPS.register("elementwise")(
    streaming(
        elements,
        ("elements",),
        reads=_reads,
        writes=_writes,
        flop=lambda dims: dims["flop_per_element"],
        defaults={"reads": 1.0, "writes": 1.0, "flop_per_element": 1.0} | STRIDED,
    )
)
OPS.register("random")(streaming(elements, ("elements",), reads=0.0, flop=10.0))

# Many small tensors in few launches: `elements` of each of `tensors`.
OPS.register("foreach")(
    streaming(
        lambda dims: dims["elements"] * dims["tensors"],
        ("elements", "tensors"),
        reads=_reads,
        writes=_writes,
        defaults={"reads": 1.0, "writes": 1.0},
    )
)
