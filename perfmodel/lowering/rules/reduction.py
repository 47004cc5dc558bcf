"""Sums, means, extrema and norms of vectors; losses and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import length, output, size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, entries
from perfmodel.lowering.rules.elementwise import pointwise
from perfmodel.ops.graph import Op, Tensor, integer, integers

OPS = {
    "sum": "sum",
    "nansum": "sum",
    "mean": "mean",
    "prod": "sum",
    "amax": "amax",
    "amin": "amax",
    "max": "amax",
    "min": "amax",
    "aminmax": "amax",
    "argmax": "amax",
    "argmin": "amax",
    "all": "amax",
    "any": "amax",
    "norm": "vector_norm",
    "linalg_vector_norm": "vector_norm",
    "std": "sum",
    "var": "sum",
    "var_mean": "sum",
    "std_mean": "sum",
    "count_nonzero": "sum",
    "median": "amax",
}
DIMENSIONS = {"norm": 2, "linalg_vector_norm": 2}
"""Position of the dimensions among the arguments, where it is not the second."""
FIRST = "sum_rows"
USUALLY_WHOLE = ("aten::norm", "aten::linalg_vector_norm", "aten::count_nonzero")
USUALLY_ROWS = ("aten::sum",)
"""Along which dimensions an op reduces where nothing tells: all, all but the last (the gradient of
a bias), else the last alone."""


def reduced(op: str, values: Tensor, kept: tuple[int, ...]) -> Sequence[Piece]:
    """One kernel over `values`; `kept` are the dimensions that remain, `FIRST` where what lies side
    by side does."""
    total = size(values.shape)
    if not total:
        return ()
    remaining = size(tuple(length(values, d) for d in kept))
    gone = total / remaining
    wide = [at for at, side in enumerate(values.shape) if side > 1]
    if remaining > 1 and wide[-1] in kept:
        return (Piece(FIRST, {"rows": gone, "cols": float(remaining)}, values.dtype),)
    return (Piece(op, {"rows": float(remaining), "cols": gone}, values.dtype),)


def _kept(op: Op, values: Tensor, position: int) -> tuple[int, ...]:
    """Dimensions that remain: from the arguments, the output, else what is usual for the op."""
    rank = len(values.shape)
    if len(op.inputs) <= position + (position == 1):
        return ()
    dims = integers(op, position)
    if dims is not None:
        gone = {d % rank for d in dims} if dims and rank else set(range(rank))
        return tuple(d for d in range(rank) if d not in gone)
    result = output(op)
    if result is not None:
        return _matching(values.shape, result.shape)
    if op.name in USUALLY_WHOLE or not rank:
        return ()
    return (rank - 1,) if op.name in USUALLY_ROWS else tuple(range(rank - 1))


def _matching(whole: tuple[int, ...], left: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of `whole` that are those of `left`, in order."""
    if len(whole) == len(left):
        return tuple(d for d, (a, b) in enumerate(zip(whole, left, strict=True)) if a == b)
    kept, at = [], 0
    for d, side in enumerate(whole):
        if at < len(left) and left[at] == side:
            kept.append(d)
            at += 1
    return tuple(kept)


@LOWERINGS.register(*entries(*OPS))
def reduction(op: Op) -> Sequence[Piece]:
    """One kernel; two operands (`max` of two tensors) are elementwise."""
    name = op.name.removeprefix("aten::")
    values = tensor(op, 0)
    if len(op.tensors) > 1:
        from perfmodel.lowering.rules.elementwise import general

        return general(op)
    return reduced(OPS[name], values, _kept(op, values, DIMENSIONS.get(name, 1)))


@LOWERINGS.register(*entries("logsumexp"))
def logsumexp(op: Op) -> Sequence[Piece]:
    """`logsumexp(x, dims, …)`, ten kernels: the largest, which of them are infinite, what is above
    it, its exponential, the sum and its logarithm."""
    values = tensor(op, 0)
    if not size(values.shape):
        return ()
    kept = _kept(op, values, 1)
    shape = tuple(side if d in kept else 1 for d, side in enumerate(values.shape))
    left, mask = Tensor(shape, values.dtype), Tensor(shape, "bool")
    return (
        *reduced("amax", values, kept),
        *pointwise([left], [left]),
        *pointwise([left], [mask]),
        *pointwise([left, mask], [left]),
        *pointwise([values, left], [values]),
        *pointwise([values], [values]),
        *reduced("sum", values, kept),
        *pointwise([left], [left]),
        *pointwise([left, left], [left]),
    )


NO_REDUCTION = 0
POINTWISE_LOSSES = ("mse_loss", "binary_cross_entropy", "smooth_l1_loss", "huber_loss", "l1_loss")


@LOWERINGS.register(*entries(*POINTWISE_LOSSES, "soft_margin_loss"))
def pointwise_loss(op: Op) -> Sequence[Piece]:
    """A loss per element, then its mean unless `reduction` (the last integer) is 0."""
    values = tensor(op, 0)
    settings = [integer(op, at) for at in range(2, len(op.inputs))]
    kinds = [value for value in settings if value is not None]
    loss = pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)
    result = output(op)
    if NO_REDUCTION in kinds[:1] or (result is not None and result.shape == values.shape != ()):
        return loss
    return (*loss, *reduced("mean", values, ()))


@LOWERINGS.register(
    *entries(*(f"{name}_backward" for name in (*POINTWISE_LOSSES, "kl_div", "soft_margin_loss")))
)
def pointwise_loss_backward(op: Op) -> Sequence[Piece]:
    """One kernel over the elements."""
    values = max(op.tensors, key=lambda t: t.elements, default=tensor(op, 0))
    return pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)


@LOWERINGS.register(
    *entries("binary_cross_entropy_with_logits", "cross_entropy_loss", "kl_div", scope=LEAF)
)
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
