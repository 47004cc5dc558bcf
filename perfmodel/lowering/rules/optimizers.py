"""Optimizer steps over lists of tensors: `foreach` and fused."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.cost.coefficients import coefficients
from perfmodel.lowering.arguments import size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.records import pointwise
from perfmodel.ops.graph import Op, Tensor, tensors_in

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
