"""Losses and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import integer, output, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece
from perfmodel.lowering.rules.elementwise import pointwise
from perfmodel.lowering.rules.reduction import reduced

NO_REDUCTION = 0
POINTWISE_LOSSES = ("mse_loss", "binary_cross_entropy", "smooth_l1_loss", "huber_loss", "l1_loss")


@LOWERINGS.register(*entries(*POINTWISE_LOSSES, "kl_div", "soft_margin_loss"))
def pointwise_loss(op: Op) -> Sequence[Piece]:
    """A loss per element, then its mean unless `reduction` (the last integer) is 0."""
    values = tensor(op, 0)
    settings = [integer(op, at) for at in range(2, len(op.inputs))]
    kinds = [value for value in settings if value is not None]
    loss = pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)
    found = output(op)
    if NO_REDUCTION in kinds[:1] or (found is not None and found.shape == values.shape != ()):
        return loss
    return (*loss, *reduced("mean", values, ()))


@LOWERINGS.register(
    *entries(*(f"{name}_backward" for name in (*POINTWISE_LOSSES, "kl_div", "soft_margin_loss")))
)
def pointwise_loss_backward(op: Op) -> Sequence[Piece]:
    """One kernel over the elements."""
    values = max(op.tensors, key=lambda t: t.elements, default=tensor(op, 0))
    return pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)


@LOWERINGS.register(*entries("binary_cross_entropy_with_logits", "cross_entropy_loss", scope=LEAF))
def composed_loss(op: Op) -> Sequence[Piece]:
    """Where what it calls is not in the graph."""
    return pointwise_loss(op)


@LOWERINGS.register(*entries("nll_loss_forward", "nll_loss2d_forward"))
def nll_loss(op: Op) -> Sequence[Piece]:
    """One element of each row of log-probabilities."""
    target = tensor(op, 1)
    return pointwise([target], [Tensor((1,), tensor(op, 0).dtype)])


@LOWERINGS.register(*entries("nll_loss_backward", "nll_loss2d_backward"))
def nll_loss_backward(op: Op) -> Sequence[Piece]:
    """Zeros, and one element of each row."""
    values = tensor(op, 1)
    return pointwise([], [values])
