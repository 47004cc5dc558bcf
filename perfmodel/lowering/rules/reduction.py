"""Sums, means, extrema and norms of vectors; losses; normalisations; and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.lowering.arguments import HOST, length, output, size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.records import by_record, made, pointwise
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in
from perfmodel.ops.operators import Operator

_NAMES = {
    "sum": "sum nansum prod std var var_mean std_mean count_nonzero",
    "mean": "mean",
    "amax": "amax amin max min aminmax argmax argmin all any median",
    "vector_norm": "norm linalg_vector_norm",
}
OPS = {f"aten::{name}": row for row, names in _NAMES.items() for name in names.split()}
NORMS = ("aten::norm", "aten::linalg_vector_norm")
"""Their dimensions are the third argument; of all others, the second."""
FIRST = "sum_rows"


def reduced(op: str, values: Tensor, kept: tuple[int, ...]) -> Sequence[Piece]:
    """One kernel over `values`; `kept` are the dimensions that remain, `FIRST` where what lies side
    by side does."""
    total = size(values.shape)
    if not total:
        return ()
    remaining = float(size(tuple(length(values, d) for d in kept)))
    gone = total / remaining
    wide = [at for at, side in enumerate(values.shape) if side > 1]
    if remaining > 1 and wide[-1] in kept:
        return (Piece(FIRST, {"rows": gone, "cols": remaining}, values.dtype),)
    return (Piece(op, {"rows": remaining, "cols": gone}, values.dtype),)


def _kept(op: Op, values: Tensor, position: int = 1) -> tuple[int, ...]:
    """Dimensions that remain: from the arguments, the output, else what is usual for the op: none
    of a norm or a count, the last of a sum (the gradient of a bias), all but the last of others."""
    rank, result = len(values.shape), output(op)
    if len(op.inputs) <= position + (position == 1):
        return ()
    dims = integers(op, position)
    if dims is not None:
        gone = {d % rank for d in dims} if dims and rank else set(range(rank))
        return tuple(d for d in range(rank) if d not in gone)
    if result is not None:
        return _matching(values.shape, result.shape)
    if op.name in (*NORMS, "aten::count_nonzero") or not rank:
        return ()
    return (rank - 1,) if op.name == "aten::sum" else tuple(range(rank - 1))


def _matching(whole: tuple[int, ...], left: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of `whole` that are those of `left`, in order."""
    if len(whole) == len(left):
        return tuple(d for d, (a, b) in enumerate(zip(whole, left, strict=True)) if a == b)
    kept: list[int] = []
    for d, side in enumerate(whole):
        if left[len(kept) : len(kept) + 1] == (side,):
            kept.append(d)
    return tuple(kept)


@LOWERINGS.register(*entries(*OPS))
def reduction(op: Op) -> Sequence[Piece]:
    """One kernel; two operands (`max` of two tensors) are elementwise."""
    values = tensor(op, 0)
    if len(op.tensors) > 1:
        return pointwise(op.tensors, [made(op, values.dtype)])
    return reduced(OPS[op.name], values, _kept(op, values, 2 if op.name in NORMS else 1))


@LOWERINGS.register(*entries("logsumexp"))
def logsumexp(op: Op) -> Sequence[Piece]:
    """`logsumexp(x, dims, …)`, ten kernels: the largest, which of them are infinite, what is above
    it, its exponential, the sum and its logarithm."""
    values = tensor(op, 0)
    if not size(values.shape):
        return ()
    kept = _kept(op, values)
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


@LOWERINGS.register(
    *entries("mse_loss binary_cross_entropy smooth_l1_loss huber_loss l1_loss soft_margin_loss"),
    *entries("binary_cross_entropy_with_logits cross_entropy_loss kl_div", scope=LEAF),
)
def pointwise_loss(op: Op) -> Sequence[Piece]:
    """A loss per element, then its mean unless `reduction` (the first integer behind the tensors)
    is 0."""
    values, result = tensor(op, 0), output(op)
    settings = (integer(op, at) for at in range(2, len(op.inputs)))
    reduction = next((value for value in settings if value is not None), None)
    loss = pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)
    if reduction == 0 or (result is not None and result.shape == values.shape != ()):
        return loss
    return (*loss, *reduced("mean", values, ()))


@LOWERINGS.register(*entries("nll_loss_forward nll_loss2d_forward"))
def nll_loss(op: Op) -> Sequence[Piece]:
    """One element of each row of log-probabilities."""
    return pointwise([tensor(op, 1)], [Tensor((1,), tensor(op, 0).dtype)])


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
    wanted = argument(op, mask)
    if not isinstance(wanted, tuple) or wanted[:1] != (False,):
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


@LOWERINGS.register(*entries("native_group_norm native_group_norm_backward"))
def group_norm(op: Op) -> Sequence[Piece]:
    """`native_group_norm(x, weight, bias, N, C, HxW, groups, eps)`: statistics per group of a
    sample, then the normalisation; backward `(gradient, x, mean, rstd, weight, N, C, HxW, groups,
    mask)`."""
    is_backward = op.name.endswith("_backward")
    if is_backward and (alone := _of_weights_alone(op, 9)):
        return alone
    values, groups = tensor(op, int(is_backward)), integer(op, 8 if is_backward else 6)
    total = size(values.shape)
    if not total:
        return ()
    per_sample = size(values.shape[1:]) if values.shape else 1
    cols = (per_sample // groups if groups else 0) or (values.shape or (1,))[-1]
    dims = {"rows": total / cols, "cols": float(cols)}
    direction = "bwd" if is_backward else "fwd"
    return (Piece("group_norm", dims, values.dtype, direction, launches=2),)
