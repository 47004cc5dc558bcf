"""Linear layers whose operands are rounded to one byte as they run."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.arguments import matrix, size, tensor
from perfmodel.lowering.piece import LOWERINGS, Piece


@LOWERINGS.register("any/quantised::linear")
def quantised_linear(op: Op) -> Sequence[Piece]:
    """Rounding of the activations and the product, as the measurement table counts them: one row
    of the weight's dtype."""
    values, weight = tensor(op, 0), tensor(op, 1)
    m, (n, k) = size(values.shape[:-1]), matrix(weight)
    if not m * n * k:
        return ()
    dims = {"b": 1.0, "m": float(m), "n": float(n), "k": float(k), "bias": 1.0}
    return (Piece("linear", dims, weight.dtype, launches=2),)
