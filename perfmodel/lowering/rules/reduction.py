"""Sums, means, extrema and norms of vectors; losses; normalisations; and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.lowering.arguments import HOST, length, output, size
from perfmodel.lowering.piece import (
    LEAF,
    LOWERINGS,
    MissingArguments,
    Piece,
    by_record,
    entries,
    tensor,
)
from perfmodel.lowering.rules.elementwise import general, pointwise
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in
from perfmodel.ops.operators import Operator

_NAMES = {
    "sum": "sum nansum prod std var var_mean std_mean count_nonzero",
    "mean": "mean",
    "amax": "amax amin max min aminmax argmax argmin all any median",
    "vector_norm": "norm linalg_vector_norm",
}
OPS = {name: row for row, names in _NAMES.items() for name in names.split()}
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


_LAYER_NORM_BACKWARD = by_record(Operator("_ x[*r,*c] (c)", "layer_norm.bwd rows=r cols=c"))
WEIGHT = 4
"""The tensor of a layer normalisation's backward pass that is its weight."""


@LOWERINGS.register(*entries("native_layer_norm_backward"))
def layer_norm_backward(op: Op) -> Sequence[Piece]:
    """Gradient of the input, then of weight and bias: gradient and input are summed together."""
    of_input = _LAYER_NORM_BACKWARD(op)
    if not of_input or len(op.tensors) <= WEIGHT:
        return of_input
    rows, width = (int(of_input[0].dims[name]) for name in ("rows", "cols"))
    both = Tensor((2 * rows, width), of_input[0].dtype)
    return _of_weights_alone(op, 7) or (*of_input, *reduced("sum", both, (1,)))


def _of_weights_alone(op: Op, mask: int) -> Sequence[Piece]:
    """A backward pass that its `mask` does not ask for the gradient of the input: gradient and
    input are read once. Nothing where it asks, or is not known."""
    asked = argument(op, mask)
    if not isinstance(asked, tuple) or asked[:1] != (False,):
        return ()
    return pointwise([tensor(op, 0), tensor(op, 1)], list(tensors_in(op.outputs)))


TRAINING = 5
"""The argument of a batch normalisation that says whether it takes statistics."""


@LOWERINGS.register(*entries("native_batch_norm _native_batch_norm_legit _batch_norm_with_update"))
def native_batch_norm(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, mean, variance, training, …)` by PyTorch's own kernels.

    In training statistics, running statistics, normalisation; else the last of them alone.
    """
    if argument(op, TRAINING) is False:
        return _of_channels(op, "fwd", 1, {"statistics": 0.0})
    return _of_channels(op, "fwd", 3)


@LOWERINGS.register(*entries("native_batch_norm_backward"))
def native_batch_norm_backward(op: Op) -> Sequence[Piece]:
    """The same by PyTorch's own kernels."""
    return _of_channels(op, "bwd", 2)


def _of_channels(
    op: Op, direction: str, launches: int, known: Mapping[str, float] | None = None
) -> Sequence[Piece]:
    """Of batch x channels x …; what ran on a CPU would call the library."""
    values = tensor(op, 0)
    if len(values.shape) < 2:
        raise MissingArguments
    total, channels = size(values.shape), values.shape[1]
    if not total:
        return ()
    if known is None and values.device == HOST:
        launches = 1
    dims = {"rows": total / channels, "cols": float(channels), **(known or {})}
    return (Piece("batch_norm", dims, values.dtype, direction, launches=launches),)


@LOWERINGS.register(*entries("native_group_norm"))
def group_norm(op: Op) -> Sequence[Piece]:
    """`native_group_norm(x, weight, bias, N, C, HxW, groups, eps)`: statistics per group of a
    sample, then the normalisation."""
    return _per_group(op, tensor(op, 0), "fwd", 6)


@LOWERINGS.register(*entries("native_group_norm_backward"))
def group_norm_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, mean, rstd, weight, N, C, HxW, groups, mask)`."""
    return _of_weights_alone(op, 9) or _per_group(op, tensor(op, 1), "bwd", 8)


def _per_group(op: Op, values: Tensor, direction: str, position: int) -> Sequence[Piece]:
    total, groups = size(values.shape), integer(op, position)
    if not total:
        return ()
    per_sample = size(values.shape[1:]) if values.shape else 1
    cols = per_sample // groups if groups else 0
    cols = cols or (values.shape or (1,))[-1]
    dims = {"rows": total / cols, "cols": float(cols)}
    return (Piece("group_norm", dims, values.dtype, direction, launches=2),)
