"""Ops that write each element from the elements at its place, or from none: arithmetic, fills,
ranges, random numbers, dropout; quantisation for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.lowering.arguments import (
    broadcast,
    bytes_of,
    layout_dims,
    length,
    output,
    result_shape,
    rows_cols,
    size,
    stored,
    tensor_bytes,
)
from perfmodel.lowering.piece import (
    LEAF,
    LOWERINGS,
    MissingArguments,
    Piece,
    entries,
    tensor,
    with_inplace,
)
from perfmodel.lowering.rules.indexing import added
from perfmodel.ops.graph import Op, Tensor, integers, tensors_in

_OWN_NAMES = (
    *("mul", "mul_", "div", "div_", "pow", "threshold_backward", "relu", "relu_", "gelu"),
    *("silu", "silu_", "sigmoid", "sigmoid_", "tanh", "tanh_"),
)
NAMED = {
    **dict.fromkeys(("add", "sub"), "add"),
    **dict.fromkeys(("add_", "sub_"), "add_inplace"),
    **dict.fromkeys(("clamp_min", "clamp_min_"), "relu"),
    **{name: name.rstrip("_") for name in _OWN_NAMES},
}
"""Ops that the measurement table has under a name of their own."""
SCALAR = {"add": "add_scalar", "add_inplace": "add_scalar", "mul": "mul_scalar"} | {
    "div": "div_scalar",
    "pow": "mul_scalar",
}
"""Powers are taken to be squares, or another that PyTorch has a product or a root for. Source:
`pow_tensor_scalar_kernel_impl`, aten/src/ATen/native/cuda/PowKernel.cu."""
UNARY = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
    "erf erfinv floor ceil round trunc frac sign sgn reciprocal nan_to_num bitwise_not hardtanh "
    "hardswish hardsigmoid leaky_relu elu selu celu softplus log_sigmoid mish logit threshold "
    "clamp clamp_max angle i0 lgamma digamma relu6 rad2deg softsign logical_not"
)
BINARY = (
    "atan2 remainder fmod floor_divide true_divide bitwise_and bitwise_or bitwise_xor __and__ "
    "__or__ __xor__ __lshift__ __rshift__ copysign hypot bitwise_left_shift bitwise_right_shift "
    "xlogy heaviside nextafter float_power addcmul addcdiv lerp logical_and logical_or "
    "logical_xor"
)
NOT_IN_PLACE = (
    "where _s_where maximum minimum fmax fmin gcd ldexp logaddexp isfinite _prelu_kernel "
    "gelu_backward silu_backward sigmoid_backward tanh_backward logit_backward hardtanh_backward "
    "leaky_relu_backward elu_backward hardswish_backward hardsigmoid_backward softplus_backward "
    "mish_backward _prelu_kernel_backward glu_backward masked_fill_backward "
    "native_dropout_backward _masked_scale upsample_nearest1d upsample_nearest2d "
    "upsample_bilinear2d polar complex _foreach_single tril triu masked_fill_ flip roll glu "
    "log_sigmoid_forward log_sigmoid_backward reflection_pad2d replication_pad2d "
    "upsample_nearest2d_backward upsample_bilinear2d_backward pixel_shuffle special_entr"
)
ALIASES = (
    "divide",
    "multiply",
    "subtract",
    "absolute",
    "negative",
    "clip",
    "square",
    "rsub",
    "prelu",
)
"""Names that call another op, which does the work."""
TO_BOOL = "eq ne lt le gt ge isnan isinf isneginf isposinf signbit isin"
SPARSE = "sparse"


def pointwise(
    reads: Sequence[Tensor], writes: Sequence[Tensor], flop: float = 1.0
) -> Sequence[Piece]:
    """One kernel that streams these tensors; nothing where they are empty."""
    tensors = [*reads, *writes]
    elements = max((size(t.shape) for t in tensors), default=0)
    if not elements:
        return ()
    dtype = max(tensors, key=tensor_bytes).dtype
    full = elements * bytes_of(dtype)
    dims = {
        "elements": float(elements),
        "reads": sum(map(tensor_bytes, reads)) / full,
        "writes": sum(map(tensor_bytes, writes)) / full,
        "flop_per_element": flop,
    }
    dims |= layout_dims(tensors, max((t.shape for t in tensors), key=size))
    return (Piece("elementwise", dims, dtype),)


def _result(op: Op, dtype: str) -> list[Tensor]:
    known = list(tensors_in(op.outputs))
    return known[:1] or [Tensor(broadcast(op.tensors), dtype)]


@LOWERINGS.register(
    *with_inplace(UNARY, BINARY),
    *entries(NOT_IN_PLACE),
    *entries(*(variant for name in ALIASES for variant in (name, f"{name}_")), scope=LEAF),
)
def general(op: Op) -> Sequence[Piece]:
    """Reads its tensors, broadcast ones once each, and writes one."""
    return pointwise(op.tensors, _result(op, tensor(op, 0).dtype))


@LOWERINGS.register(*with_inplace(TO_BOOL))
def comparison(op: Op) -> Sequence[Piece]:
    """Reads its tensors and writes one byte per element."""
    return pointwise(op.tensors, [Tensor(broadcast(op.tensors), "bool")])


def _rows_added(op: Op) -> Sequence[Piece]:
    """`add_(table, gradient)`: each row of the gradient is added to its own of the table."""
    if "lookups" not in op.attributes:
        raise MissingArguments
    rows, table = round(float(op.attributes["lookups"])), tensor(op, 0)
    return added(op, rows, size(table.shape) // max(length(table, 0), 1))


@LOWERINGS.register(*entries(*NAMED))
def named(op: Op) -> Sequence[Piece]:
    """As the measurement table has it where all operands are of one size and type; of a sparse
    operand, the rows that it holds."""
    tensors, shape = op.tensors, result_shape(op)
    if not tensors:
        raise MissingArguments
    if any(tensor.layout == SPARSE for tensor in tensors):
        return _rows_added(op)
    if not size(shape):
        return ()
    name = NAMED[op.name.removeprefix("aten::")]
    full = [t for t in tensors if t.shape == shape and stored(t) == size(shape)]
    scalars = [t for t in tensors if size(t.shape) == 1 and t.shape != shape]
    same = len({t.dtype for t in [*full, *_result(op, tensors[0].dtype)]}) == 1
    if same and len(full) + len(scalars) == len(tensors) and len(full) in (1, 2):
        dims = rows_cols(shape) | layout_dims([*tensors, *_result(op, full[0].dtype)], shape)
        return (Piece(SCALAR.get(name, name) if len(full) == 1 else name, dims, full[0].dtype),)
    return general(op)


TO = {
    "FloatToHFP8Quantized": "uint8",
    "HFP8QuantizedToFloat": "fp32",
    "FloatToBfloat16Quantized": "bf16",
    "Bfloat16QuantizedToFloat": "fp32",
    "FloatToMSFPQuantized": "uint8",
    "MSFPQuantizedToFloat": "fp32",
    "FP8RowwiseQuantizedToFloat": "fp32",
    "Fused8BitRowwiseQuantizedToFloat": "fp32",
}
ROWWISE = ("FloatToFP8RowwiseQuantized", "FloatToFused8BitRowwiseQuantized")


@LOWERINGS.register(*entries(*(f"fbgemm::{name}" for name in TO)))
def quantise(op: Op) -> Sequence[Piece]:
    """Each element to another type."""
    values = tensor(op, 0)
    return pointwise([values], [Tensor(values.shape, TO[op.name.removeprefix("fbgemm::")])])


@LOWERINGS.register(*entries(*(f"fbgemm::{name}" for name in ROWWISE)))
def quantise_rows(op: Op) -> Sequence[Piece]:
    """The range of each row, then its elements in one byte each."""
    values = tensor(op, 0)
    if not size(values.shape):
        return ()
    return (
        Piece("amax", rows_cols(values.shape), values.dtype),
        *pointwise([values], [Tensor(values.shape, "uint8")]),
    )


ONE_ELEMENT = Tensor((1,))


def fill_of(filled: Tensor) -> Sequence[Piece]:
    """One kernel that writes a tensor."""
    if not size(filled.shape):
        return ()
    if layout_dims([filled], filled.shape):
        return pointwise([], [filled], flop=0.0)
    return (Piece("fill", rows_cols(filled.shape), filled.dtype),)


@LOWERINGS.register(
    *entries("fill_", "fill", "eye_"),
    *entries("zero_", "zeros_like", "ones_like", "full_like", scope=LEAF),
)
def fill(op: Op) -> Sequence[Piece]:
    """Writes its first argument, or a new tensor of its shape."""
    return fill_of(tensor(op, 0))


@LOWERINGS.register(
    *entries("zeros", "ones", "full", "new_zeros", "new_full", "new_ones", "arange", scope=LEAF),
    *entries("linspace", "eye", "scalar_tensor", scope=LEAF),
)
def new_tensor(op: Op) -> Sequence[Piece]:
    """Writes a new tensor of the shape that is stated."""
    result = output(op)
    if result is None:
        sizes = integers(op, 0)
        if sizes is None:
            raise MissingArguments
        result = Tensor(sizes)
    return fill_of(result)


@LOWERINGS.register(*entries("arange", "linspace", "logspace", "tril_indices", "triu_indices"))
def range_of(op: Op) -> Sequence[Piece]:
    """Writes its output; one element at least where the graph does not say how many."""
    result = output(op)
    if result is not None:
        return fill_of(result)
    return tuple(replace(piece, guessed=True) for piece in fill_of(ONE_ELEMENT))


@LOWERINGS.register(
    *entries("native_dropout", "_fused_dropout"),
    *entries("dropout", "dropout_", "feature_dropout", scope=LEAF),
)
def dropout(op: Op) -> Sequence[Piece]:
    """Reads a tensor, writes it and a mask of bytes."""
    values = tensor(op, 0)
    return pointwise([values], [values, Tensor(values.shape, "bool")], flop=10.0)
