"""Ops that write each element from the elements at its place, or from none, where a record cannot
say it: arithmetic that the measurement table has by name, fills, ranges, optimizers over lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.cost.coefficients import coefficients
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
from perfmodel.ops.graph import Op, Tensor, integers, tensors_in

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


TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""By how many lists one launch goes over.

Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh.
"""
BLOCKS_PER_LAUNCH = 320
CHUNK_ELEMENTS = int(coefficients("gpu.streaming").chunk_elements)

FUSED = {
    "_fused_adam_": "optimizer_adam",
    "_fused_adamw_": "optimizer_adamw",
    "_fused_sgd_": "optimizer_sgd",
    "_fused_adagrad_": "optimizer_adagrad",
}


def multi_tensor_launches(sizes: Sequence[int], lists: int) -> int:
    """How often a kernel over lists of tensors of these sizes is launched."""
    at_once = TENSORS_PER_LAUNCH[min(max(lists, 1), max(TENSORS_PER_LAUNCH))]
    launches = tensors = blocks = 0
    for elements in sizes:
        chunks = -(-elements // CHUNK_ELEMENTS)
        tensors += bool(chunks)
        while chunks:
            taken = min(chunks, BLOCKS_PER_LAUNCH - blocks)
            chunks, blocks = chunks - taken, blocks + taken
            if blocks == BLOCKS_PER_LAUNCH or (tensors == at_once and not chunks):
                launches += 1
                blocks = 0
                tensors = 1 if chunks else 0
    return launches + (blocks > 0)


def _lists(op: Op) -> list[list[Tensor]]:
    operands = [list(tensors_in(item)) for item in op.inputs if isinstance(item, tuple)]
    lists = [tensors for tensors in operands if tensors]
    if not lists:
        raise MissingArguments
    return lists


def _dims(tensors: Sequence[Tensor]) -> tuple[list[int], dict[str, float]]:
    sizes = [size(t.shape) for t in tensors if size(t.shape)]
    if not sizes:
        return sizes, {}
    mean, largest = sum(sizes) / len(sizes), max(sizes)
    dims = {"elements": mean, "tensors": float(len(sizes))}
    return sizes, dims | ({"largest": float(largest)} if largest > mean else {})


@LOWERINGS.register(*entries("_foreach_*", scope=LEAF))
def foreach(op: Op) -> Sequence[Piece]:
    """One kernel over lists of tensors; out of place it writes new ones. What it zeroes or copies
    into it does not read."""
    lists = [tensors for tensors in _lists(op) if len(tensors) == len(_lists(op)[0])]
    sizes, dims = _dims(lists[0])
    if not sizes:
        return ()
    in_place = op.name.endswith("_")
    overwritten = op.name.endswith(("zero_", "copy_"))
    reads = float(len(lists) - overwritten)
    launches = multi_tensor_launches(sizes, len(lists) + (not in_place))
    is_norm = "norm" in op.name
    dims |= {"reads": reads, "writes": float(not is_norm)}
    return (Piece("foreach", dims, lists[0][0].dtype, launches=launches + is_norm),)


@LOWERINGS.register(*entries(*FUSED))
def fused(op: Op) -> Sequence[Piece]:
    """One kernel over parameters, gradients and states."""
    lists = _lists(op)
    sizes, dims = _dims(lists[0])
    if not sizes:
        return ()
    same = [
        tensors for tensors in lists if len(tensors) == len(lists[0]) and tensors[0].shape != ()
    ]
    launches = multi_tensor_launches(sizes, len(same))
    name = FUSED[op.name.removeprefix("aten::")]
    dims["fused"] = 1.0
    return (Piece(name, dims, lists[0][0].dtype, "update", launches=launches),)


@LOWERINGS.register(*entries("_amp_foreach_non_finite_check_and_unscale_"))
def unscale(op: Op) -> Sequence[Piece]:
    """Gradients divided by the loss scale."""
    sizes, dims = _dims(_lists(op)[0])
    if not sizes:
        return ()
    item = _lists(op)[0][0].dtype
    return (Piece("foreach", dims, item, launches=multi_tensor_launches(sizes, 1)),)


@LOWERINGS.register(*entries("_amp_update_scale_"))
def update_scale(op: Op) -> Sequence[Piece]:
    """One thread."""
    return pointwise([], [tensor(op, 0)], flop=0.0)
