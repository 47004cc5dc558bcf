"""Ops over vectors where a record cannot say it: elementwise work that the measurement table has by
name, fills, optimizers over lists; sums, means, extrema, norms of vectors; losses; normalisations
and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfmodel.cost.coefficients import coefficients
from perfmodel.lowering.arguments import (
    HOST,
    fill_of,
    layout_dims,
    length,
    made,
    output,
    pointwise,
    rows_cols,
    stored,
    tensor,
)
from perfmodel.lowering.piece import LEAF, MissingArguments, Piece, rule
from perfmodel.lowering.rules.indexing import added
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in
from perfmodel.ops.lookups import SPARSE

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


@rule(*NAMED)
def named(op: Op) -> Sequence[Piece]:
    """As the measurement table has it where all operands are of one size and type; of a sparse
    operand, the rows that it holds are added to their own of the table."""
    tensors, shape = op.tensors[:2], made(op).shape  # a third one is where the result goes (`out=`)
    if not tensors:
        raise MissingArguments
    if any(tensor.layout == SPARSE for tensor in tensors):
        if "lookups" not in op.attributes:
            raise MissingArguments
        rows, table = round(float(op.attributes["lookups"])), tensor(op, 0)
        return added(op, rows, table.elements // max(length(table, 0), 1))
    if not prod(shape):
        return ()
    name = NAMED[op.name.removeprefix("aten::")]
    full = [t for t in tensors if t.shape == shape and stored(t) == prod(shape)]
    scalars = [t for t in tensors if t.elements == 1 and t.shape != shape]
    same = len({t.dtype for t in [*full, made(op)]}) == 1
    if same and len(full) + len(scalars) == len(tensors) and len(full) in (1, 2):
        dims = rows_cols(shape) | layout_dims([*tensors, made(op)], shape)
        return (Piece(SCALAR.get(name, name) if len(full) == 1 else name, dims, full[0].dtype),)
    return pointwise(tensors, [made(op)])


@rule("zeros ones full new_zeros new_full new_ones eye scalar_tensor", scope=LEAF)
def new_tensor(op: Op) -> Sequence[Piece]:
    """Writes a new tensor of the shape that is stated."""
    sizes, result = integers(op, 0), output(op)
    if result is None and sizes is None:
        raise MissingArguments
    return fill_of(result or Tensor(sizes or ()))


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
    blocks = sum(-(-elements // CHUNK_ELEMENTS) for elements in sizes)
    return max(-(-len(sizes) // at_once), -(-blocks // BLOCKS_PER_LAUNCH))


_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


@rule("_foreach_*", scope=LEAF)
@rule(*FUSED, _UNSCALE)
def over_lists(op: Op) -> Sequence[Piece]:
    """One kernel over lists of tensors, such as parameters, gradients and states; out of place it
    writes new ones. What it zeroes or copies into it does not read."""
    lists = [held for item in op.inputs if isinstance(item, tuple) if (held := [*tensors_in(item)])]
    if not lists:
        raise MissingArguments
    name, dtype = op.name.removeprefix("aten::"), lists[0][0].dtype
    sizes = [t.elements for t in lists[0] if t.elements]
    if not sizes:
        return ()
    mean, largest = sum(sizes) / len(sizes), max(sizes)
    dims = {"elements": mean, "tensors": float(len(sizes))}
    dims |= {"largest": float(largest)} if largest > mean else {}
    alike = [tensors for tensors in lists if len(tensors) == len(lists[0])]
    if name == _UNSCALE:
        return (Piece("foreach", dims, dtype, launches=multi_tensor_launches(sizes, 1)),)
    if name in FUSED:
        launches = multi_tensor_launches(sizes, sum(held[0].shape != () for held in alike))
        return (Piece(FUSED[name], dims, dtype, "update", launches=launches),)
    launches = multi_tensor_launches(sizes, len(alike) + (not name.endswith("_")))
    reads, is_norm = len(alike) - name.endswith(("zero_", "copy_")), "norm" in name
    dims |= {"reads": float(reads), "writes": float(not is_norm)}
    return (Piece("foreach", dims, dtype, launches=launches + is_norm),)


_NAMES = {
    "sum": "sum nansum prod std var var_mean std_mean count_nonzero",
    "mean": "mean",
    "amax": "amax amin max min aminmax argmax argmin all any _is_all_true median",
    "vector_norm": "norm linalg_vector_norm",
}
OPS = {f"aten::{name}": row for row, names in _NAMES.items() for name in names.split()}
NORMS = ("aten::norm", "aten::linalg_vector_norm")
"""Their dimensions are the third argument; of all others, the second."""
FIRST = "sum_rows"


def reduced(op: str, values: Tensor, kept: tuple[int, ...]) -> Sequence[Piece]:
    """One kernel over `values`; `kept` are the dimensions that remain, `FIRST` where what lies side
    by side does."""
    total = values.elements
    if not total:
        return ()
    remaining = float(prod(tuple(length(values, d) for d in kept)))
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
    if result is not None and len(result.shape) == rank:
        pairs = zip(values.shape, result.shape, strict=True)
        return tuple(d for d, (whole, left) in enumerate(pairs) if whole == left)
    if result is not None:
        kept: list[int] = []
        for d, side in enumerate(values.shape):
            if result.shape[len(kept) : len(kept) + 1] == (side,):
                kept.append(d)
        return tuple(kept)
    if op.name in (*NORMS, "aten::count_nonzero") or not rank:
        return ()
    return (rank - 1,) if op.name == "aten::sum" else tuple(range(rank - 1))


@rule(*OPS)
def reduction(op: Op) -> Sequence[Piece]:
    """One kernel; two operands (`max` of two tensors) are elementwise."""
    values = tensor(op, 0)
    if len(op.tensors) > 1:
        return pointwise(op.tensors, [made(op)])
    return reduced(OPS[op.name], values, _kept(op, values, 2 if op.name in NORMS else 1))


@rule("logsumexp")
def logsumexp(op: Op) -> Sequence[Piece]:
    """`logsumexp(x, dims, …)`: the largest, what is above it, its exponential, and the sum."""
    values = tensor(op, 0)
    kept = _kept(op, values)
    above = pointwise([values], [values])
    return (*reduced("amax", values, kept), *above, *above, *reduced("sum", values, kept))


@rule("mse_loss binary_cross_entropy smooth_l1_loss huber_loss l1_loss soft_margin_loss")
@rule("nll_loss_forward nll_loss2d_forward")
@rule("binary_cross_entropy_with_logits cross_entropy_loss kl_div", scope=LEAF)
def pointwise_loss(op: Op) -> Sequence[Piece]:
    """A loss per element, then its mean unless `reduction` (the first integer behind the tensors)
    is 0."""
    values, result = tensor(op, 0), output(op)
    settings = (integer(op, at) for at in range(2, len(op.inputs)))
    reduction = next((value for value in settings if value is not None), None)
    if "nll" in op.name:  # one element of each row of log-probabilities
        return pointwise([tensor(op, 1)], [Tensor((1,), values.dtype)])
    loss = pointwise(op.tensors, [Tensor(values.shape, values.dtype)], flop=4.0)
    if reduction == 0 or (result is not None and result.shape == values.shape != ()):
        return loss
    return (*loss, *reduced("mean", values, ()))


TRAINING = 5
"""The argument of a batch normalisation that says whether it takes statistics."""


@rule("native_batch_norm _native_batch_norm_legit _batch_norm_with_update")
@rule("native_batch_norm_backward")
def native_batch_norm(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, mean, variance, training, …)` by PyTorch's own kernels: in training
    statistics, running statistics, normalisation; else the last of them alone. What ran on a CPU
    would call the library."""
    values = tensor(op, 0)
    if len(values.shape) < 2:
        raise MissingArguments
    total, channels = values.elements, values.shape[1]
    if not total:
        return ()
    is_backward = op.name.endswith("_backward")
    dims = {"rows": total / channels, "cols": float(channels)}
    launches = 1 if values.device == HOST else 2 if is_backward else 3
    if not is_backward and argument(op, TRAINING) is False:
        dims, launches = {**dims, "statistics": 0.0}, 1
    direction = "bwd" if is_backward else "fwd"
    return (Piece("batch_norm", dims, values.dtype, direction, launches=launches),)
