"""Pooling over windows of images."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import integers, output, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, Untold

USUAL_STRIDE = 2
USUAL_KERNEL = 3


def windows(
    op: str,
    values: Tensor,
    pooled: int | None,
    kernel: tuple[int, ...] | None,
    stride: tuple[int, ...] | None,
    direction: str,
) -> Sequence[Piece]:
    """One kernel from or to `values`; without an output, its size is taken from the stride."""
    total = size(values.shape)
    if not total:
        return ()
    step = (stride or kernel or (USUAL_STRIDE,))[0]
    if step < 1:
        raise Untold
    dims = {
        "elements": float(total),
        "outputs": float(pooled or max(total // step**2, 1)),
        "kernel_size": float((kernel or (USUAL_KERNEL,))[0]),
    }
    guessed = pooled is None and not stride and not kernel
    return (Piece(op, dims, values.dtype, direction, guessed=guessed),)


@LOWERINGS.register(
    *entries("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
    *entries("max_pool2d", "max_pool1d", "avg_pool1d", scope=LEAF),
)
def pool(op: Op) -> Sequence[Piece]:
    """`(x, kernel_size, stride, …)`."""
    name = "avg_pool" if "avg" in op.name else "max_pool"
    found = output(op)
    pooled = size(found.shape) if found is not None else None
    return windows(name, tensor(op, 0), pooled, integers(op, 1), integers(op, 2), "fwd")


@LOWERINGS.register(
    *entries("max_pool2d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward"),
)
def pool_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, kernel_size, stride, …)`."""
    name = "avg_pool" if "avg" in op.name else "max_pool"
    pooled = size(tensor(op, 0).shape)
    return windows(name, tensor(op, 1), pooled, integers(op, 2), integers(op, 3), "bwd")


@LOWERINGS.register(*entries("_adaptive_avg_pool2d", "adaptive_max_pool2d"))
def adaptive(op: Op) -> Sequence[Piece]:
    """`(x, output_size)`: to one pixel where not told."""
    values, sides = tensor(op, 0), integers(op, 1)
    pooled = size(values.shape[:-2]) * (size(sides) if sides else 1)
    return windows("avg_pool", values, pooled, None, None, "fwd")


@LOWERINGS.register(*entries("_adaptive_avg_pool2d_backward"))
def adaptive_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x)`."""
    return windows("avg_pool", tensor(op, 1), size(tensor(op, 0).shape), None, None, "bwd")
