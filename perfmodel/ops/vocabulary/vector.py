"""Ops that read and write each element a fixed number of times: elementwise, reductions, norms.

A row is `rows x cols` (reductions run along `cols`).
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

VECTOR = "vector"


def _elements(dims: Dims) -> Floats:
    return dims["rows"] * dims["cols"]


def _elementwise(reads: float, flop: float = 1.0) -> OpSpec:
    return OpSpec(
        family=VECTOR,
        dims=("rows", "cols"),
        flop=lambda dims: flop * _elements(dims),
        read_bytes=lambda dims, item_bytes: item_bytes * reads * _elements(dims),
        written_bytes=lambda dims, item_bytes: item_bytes * _elements(dims),
    )


for _name in ("add", "mul", "div", "pow"):
    OPS.register(_name)(_elementwise(reads=2))
for _name in ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "relu", "gelu", "tanh"):
    OPS.register(_name)(_elementwise(reads=1))
