"""Ops that write each element from the elements at its place, or from none, where a record cannot
say it: arithmetic that the measurement table has by name, fills, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.lowering.arguments import (
    layout_dims,
    length,
    output,
    result_shape,
    rows_cols,
    size,
    stored,
    tensor,
)
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.records import fill_of, made, pointwise
from perfmodel.lowering.rules.indexing import added
from perfmodel.ops.graph import Op, Tensor, integers

NAMED = {
    **dict.fromkeys(("add", "sub"), "add"),
    **dict.fromkeys(("add_", "sub_"), "add_inplace"),
    **dict.fromkeys(("clamp_min", "clamp_min_", "relu_"), "relu"),
    **{f"{name}_": name for name in ("mul", "div", "silu", "sigmoid", "tanh")},
    **{name: name for name in ("mul", "div", "pow", "threshold_backward", "relu", "gelu")},
    **{name: name for name in ("silu", "sigmoid", "tanh")},
}
"""Ops that the measurement table has under a name of their own."""
SCALAR = {"add": "add_scalar", "add_inplace": "add_scalar", "mul": "mul_scalar"} | {
    "div": "div_scalar",
    "pow": "mul_scalar",
}
"""Powers are taken to be squares, or another that PyTorch has a product or a root for. Source:
`pow_tensor_scalar_kernel_impl`, aten/src/ATen/native/cuda/PowKernel.cu."""
SPARSE = "sparse"


@LOWERINGS.register(*entries(*NAMED))
def named(op: Op) -> Sequence[Piece]:
    """As the measurement table has it where all operands are of one size and type; of a sparse
    operand, the rows that it holds are added to their own of the table."""
    tensors, shape = op.tensors, result_shape(op)
    if not tensors:
        raise MissingArguments
    if any(tensor.layout == SPARSE for tensor in tensors):
        if "lookups" not in op.attributes:
            raise MissingArguments
        rows, table = round(float(op.attributes["lookups"])), tensor(op, 0)
        return added(op, rows, size(table.shape) // max(length(table, 0), 1))
    if not size(shape):
        return ()
    name = NAMED[op.name.removeprefix("aten::")]
    full = [t for t in tensors if t.shape == shape and stored(t) == size(shape)]
    scalars = [t for t in tensors if size(t.shape) == 1 and t.shape != shape]
    same = len({t.dtype for t in [*full, made(op, tensors[0].dtype)]}) == 1
    if same and len(full) + len(scalars) == len(tensors) and len(full) in (1, 2):
        dims = rows_cols(shape) | layout_dims([*tensors, made(op, full[0].dtype)], shape)
        return (Piece(SCALAR.get(name, name) if len(full) == 1 else name, dims, full[0].dtype),)
    return pointwise(tensors, [made(op, tensor(op, 0).dtype)])


@LOWERINGS.register(
    *entries("fill_ fill eye_"),
    *entries("zero_ zeros_like ones_like full_like", scope=LEAF),
)
def fill(op: Op) -> Sequence[Piece]:
    """Writes its first argument, or a new tensor of its shape."""
    return fill_of(tensor(op, 0))


@LOWERINGS.register(
    *entries("zeros ones full new_zeros new_full new_ones eye scalar_tensor", scope=LEAF)
)
def new_tensor(op: Op) -> Sequence[Piece]:
    """Writes a new tensor of the shape that is stated."""
    sizes, result = integers(op, 0), output(op)
    if result is None and sizes is None:
        raise MissingArguments
    return fill_of(result or Tensor(sizes or ()))


@LOWERINGS.register(*entries("arange linspace logspace tril_indices triu_indices"))
def range_of(op: Op) -> Sequence[Piece]:
    """Writes its output; one element at least where the graph does not say how many."""
    result = output(op)
    pieces = fill_of(result or Tensor((1,)))
    return pieces if result is not None else [replace(piece, guessed=True) for piece in pieces]
