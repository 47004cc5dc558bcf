"""Convolutions and pooling over windows of images, forward and backward; how many launches a call
of a library takes on one target, where targets differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np

from perfmodel.lowering.arguments import optional_tensor, output, size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, Lowering, MissingArguments, Piece, entries
from perfmodel.lowering.records import by_record, pointwise
from perfmodel.lowering.rules.reduction import reduced
from perfmodel.ops.graph import Argument, Op, Tensor, argument, integer, integers
from perfmodel.ops.operators import OPERATORS
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area, output_area

Numbers = tuple[int, ...]


def per_side(numbers: Numbers | None, count: int) -> Numbers | None:
    """One number per dimension of the image; None where nothing is told."""
    if numbers is None or not numbers:
        return None
    return numbers if len(numbers) == count else numbers * count


def geometry(
    op: Op, values: Tensor, weight: Tensor, result: Tensor | None, numbers: Numbers
) -> dict[str, float]:
    """Dims of `conv2d` from `values` to `result`; a third dimension of space is folded into batch
    and channels. `numbers`: where `op` has stride, padding, dilation and groups."""
    stride, padding, dilation = (integers(op, at) for at in numbers[:3])
    count = len(values.shape) - 2
    if count not in (1, 2, 3) or len(weight.shape) != count + 2 or not size(weight.shape):
        raise MissingArguments
    image, kernel = values.shape[2:], weight.shape[2:]
    made = result.shape[2:] if result is not None and len(result.shape) == count + 2 else None
    step = per_side(stride, count)
    if (made and not size(made)) or (step and min(step) < 1):
        raise MissingArguments
    if step is None:
        step = tuple(max(round(a / b), 1) for a, b in zip(image, made or image, strict=True))
    pad = per_side(padding, count) or tuple(k // 2 for k in kernel)
    spread = per_side(dilation, count) or (1,) * count
    batch, depth = values.shape[0], 1
    if count == 3:
        depth = kernel[0]
        batch *= max((image[0] + 2 * pad[0] - spread[0] * (kernel[0] - 1) - 1) // step[0] + 1, 1)
    groups = _groups(op, numbers) or max(values.shape[1] // weight.shape[1], 1)
    dims: dict[str, float] = {
        "batch": float(batch),
        "in_channels": float(values.shape[1] * depth),
        "out_channels": float(weight.shape[0]),
        "groups": float(groups),
        "dilation": float(spread[-1]),
    }
    if count == 3:
        dims["depth"] = float(depth)
    if values.shape[1] > 1 and values.strides[1:2] == (1,):
        dims["channels_last"] = 1.0
    sides = {"input": image, "kernel": kernel, "stride": step, "pad": pad}
    for name, each in sides.items():
        height, width = each[-2:] if count > 1 else (int(name != "pad"), each[0])
        dims |= square(name, height, width)
    return dims


def square(name: str, height: int, width: int) -> dict[str, float]:
    """One dim for both sides, and each where they differ."""
    one = {"input": "input_size", "kernel": "kernel_size", "pad": "padding"}.get(name, name)
    if height == width:
        return {one: float(height)}
    return {f"{name}_h": float(height), f"{name}_w": float(width), one: float(min(height, width))}


def _groups(op: Op, numbers: Numbers) -> int | None:
    return integer(op, numbers[3])


ATEN, DIRECT, LIBRARY = (3, 4, 5, 8), (3, 4, 5, 6), (4, 3, 5, 6)
"""Where calls have stride, padding, dilation and groups among their arguments."""
_CALLS: dict[str, Numbers] = {
    "aten::cudnn_convolution": (3, 2, 4, 5),
    "aten::cudnn_convolution_relu": (3, 2, 4, 5),
    **dict.fromkeys(
        (f"aten::{name}" for name in ("miopen_convolution", "mkldnn_convolution")), LIBRARY
    ),
    "aten::miopen_depthwise_convolution": LIBRARY,
    **dict.fromkeys(
        ("aten::_conv_depthwise2d", "aten::slow_conv2d_forward", "aten::_slow_conv2d_forward"),
        (4, 5, 6, 99),
    ),
}


@LOWERINGS.register(*entries(*_CALLS))
def of_library(op: Op) -> Sequence[Piece]:
    """`(x, weight, …)`."""
    return _forward(op, _CALLS[op.name])


def _forward(op: Op, numbers: Numbers) -> Sequence[Piece]:
    values, weight, result = tensor(op, 0), tensor(op, 1), output(op)
    if not size(values.shape):
        return ()
    is_guessed = integers(op, numbers[0]) is None and result is None
    dims = geometry(op, values, weight, result, numbers)
    return (Piece("conv2d", dims, values.dtype, guessed=is_guessed),)


def _with_bias(op: Op, pieces: Sequence[Piece]) -> Sequence[Piece]:
    bias, values, weight = optional_tensor(op, 2), tensor(op, 0), tensor(op, 1)
    if bias is None or not pieces:
        return pieces
    pixels = int(pieces[0].dims["input_size"] / pieces[0].dims["stride"])
    made = Tensor((values.shape[0], weight.shape[0], pixels, pixels), values.dtype)
    result = output(op) or made
    return (*pieces, *pointwise([result, bias], [result]))


@LOWERINGS.register(*entries("convolution _convolution", scope=LEAF))
def convolution(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`.

    Transposed, it is the gradient to the data of the convolution from its output to its input.
    """
    is_transposed = argument(op, 6) is True
    return _with_bias(op, _spread_out(op, ATEN, 7) if is_transposed else _forward(op, ATEN))


@LOWERINGS.register(*entries("cudnn_convolution_transpose"))
def cudnn_convolution_transpose(op: Op) -> Sequence[Piece]:
    """`(x, weight, padding, output_padding, stride, dilation, groups, …)`, as a profile has it."""
    return _spread_out(op, (4, 2, 5, 6), 3)


def _spread_out(op: Op, numbers: Numbers, padded: int) -> Sequence[Piece]:
    """A transposed convolution; `padded` is the argument that pads its output."""
    values, weight = tensor(op, 0), tensor(op, 1)
    if not size(values.shape):
        return ()
    made = output(op) or _transposed_output(op, values, weight, numbers, padded)
    dims = geometry(op, made, weight, values, numbers)
    return (Piece("conv2d", dims, values.dtype, "bwd_data"),)


def _transposed_output(
    op: Op, values: Tensor, weight: Tensor, numbers: Numbers, padded: int
) -> Tensor:
    """What a transposed convolution makes, where the graph does not say."""
    count = len(values.shape) - 2
    stride, padding, spread = (per_side(integers(op, at), count) for at in numbers[:3])
    extra = per_side(integers(op, padded), count) or (0,) * count
    if stride is None or padding is None or spread is None:
        raise MissingArguments
    sides = zip(values.shape[2:], stride, padding, spread, weight.shape[2:], extra, strict=True)
    image = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, s, p, d, k, e in sides]
    groups = _groups(op, numbers) or 1
    return Tensor((values.shape[0], weight.shape[1] * groups, *image), values.dtype)


@LOWERINGS.register(*entries("conv2d conv1d conv3d", scope=LEAF))
def conv2d(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, stride, padding, dilation, groups)`."""
    return _with_bias(op, _forward(op, DIRECT))


def _backward(
    op: Op, gradient: Tensor, values: Tensor, numbers: Numbers, mask: Argument
) -> Sequence[Piece]:
    """To the input, the weights and the bias, as `output_mask` asks."""
    if not size(values.shape):
        return ()
    dims = geometry(op, values, tensor(op, 2), gradient, numbers)
    wanted = mask if isinstance(mask, tuple) and len(mask) > 1 else (True, True)
    directions = zip(("bwd_data", "bwd_weight"), wanted, strict=False)
    return (
        *(Piece("conv2d", dims, values.dtype, direction) for direction, on in directions if on),
        *(reduced("sum", gradient, (1,)) if wanted[2:] and wanted[2] else ()),
    )


@LOWERINGS.register(*entries("convolution_backward"))
def convolution_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, weight, bias_sizes, stride, padding, dilation, …, groups, mask)`."""
    return _backward(op, tensor(op, 0), tensor(op, 1), (4, 5, 6, 9), argument(op, 10))


PARTS = {"input": (True, False), "weight": (False, True)}
_LIBRARY_BACKWARD = [f"{library}_convolution_backward" for library in ("cudnn", "miopen")]


@LOWERINGS.register(
    *entries(*_LIBRARY_BACKWARD, "mkldnn_convolution_backward", scope=LEAF),
    *entries(*(f"{name}_{part}" for name in _LIBRARY_BACKWARD for part in PARTS)),
)
def library_backward(op: Op) -> Sequence[Piece]:
    """`(x, gradient, weight, padding, stride, dilation, groups, …, mask)`, before PyTorch 1.10; of
    its input or weight alone, with the arguments of the whole (see `context.complete_ops`)."""
    masks = [item for item in op.inputs[7:] if isinstance(item, tuple)]
    mask = PARTS.get(op.name.rpartition("_")[2]) or (masks[-1] if masks else None)
    return _backward(op, tensor(op, 1), tensor(op, 0), LIBRARY, mask)


USUAL_SIDES, USUAL_STRIDE, USUAL_KERNEL = 2, 2, 3


def windows(
    op: str,
    values: Tensor,
    pooled: int | None,
    direction: str,
    kernel: Numbers | None = None,
    stride: Numbers | None = None,
    sides: int = USUAL_SIDES,
) -> Sequence[Piece]:
    """One kernel from or to `values` over windows of `sides` dimensions; without an output, its
    size is taken from the stride."""
    total = size(values.shape)
    if not total:
        return ()
    step = per_side(stride or kernel or (USUAL_STRIDE,), sides) or ()
    window = per_side(kernel or (USUAL_KERNEL,), sides) or ()
    if not step or min(step) < 1:
        raise MissingArguments
    dims = {
        "elements": float(total),
        "outputs": float(pooled or max(total // size(step), 1)),
        "kernel_size": float(size(window)) ** 0.5,
    }
    if sides != USUAL_SIDES:
        dims["sides"] = float(sides)
    guessed = pooled is None and not stride and not kernel
    return (Piece(op, dims, values.dtype, direction, guessed=guessed),)


@LOWERINGS.register(
    *entries("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"),
    *entries("max_pool2d max_pool1d max_pool3d avg_pool1d", scope=LEAF),
    *entries("max_pool2d_with_indices_backward avg_pool2d_backward avg_pool3d_backward"),
)
def pool(op: Op) -> Sequence[Piece]:
    """`(x, kernel_size, stride, …)`; backward the gradient comes first."""
    is_backward = op.name.endswith("_backward")
    name = "avg_pool" if "avg" in op.name else "max_pool"
    made = tensor(op, 0) if is_backward else output(op)
    kernel, stride = integers(op, 1 + is_backward), integers(op, 2 + is_backward)
    sides = next(int(each[0]) for each in op.name.split("pool")[1:] if each[:1].isdigit())
    pooled = None if made is None else size(made.shape)
    direction = "bwd" if is_backward else "fwd"
    return windows(name, tensor(op, int(is_backward)), pooled, direction, kernel, stride, sides)


@LOWERINGS.register(*entries("_adaptive_avg_pool2d adaptive_max_pool2d"))
def adaptive(op: Op) -> Sequence[Piece]:
    """`(x, output_size)`: to one pixel where not told."""
    values, sides = tensor(op, 0), integers(op, 1)
    return windows("avg_pool", values, size(values.shape[:-2]) * size(sides or (1,)), "fwd")


@LOWERINGS.register(*entries("_adaptive_avg_pool2d_backward"))
def adaptive_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x)`."""
    return windows("avg_pool", tensor(op, 1), size(tensor(op, 0).shape), "bwd")


CONV = "conv2d"

TILE, MAX_TILES, MIN_K = 64, 24, 256
"""cuBLAS splits the contraction, and adds up in a second kernel, when so few tiles share so long a
one. Source: chosen on the fp32 products of one shared A100 trace (right for 119 of 132 shapes);
of traces not looked at, right for 16 of 19 on V100 (`tests/lowering/test_split_k.py`)."""
SPLIT_K_LAUNCHES = 2

CUDNN_LAUNCHES = 2
"""Per convolution: cuDNN prepares offsets or zeros first.

Source: means of two ResNet traces on V100 with PyTorch 1.9 (1.9 forward, 2.6 and 2.4 backward).
"""
CAST_READS = 2.0
"""An fp32 element in units of a 16-bit one."""
CONVOLUTIONS: dict[str, Lowering] = {
    "cudnn_convolution": of_library,
    "miopen_convolution": of_library,
    "convolution_backward": convolution_backward,
    **{
        f"{name}_{part}": library_backward
        for name in ("cudnn_convolution_backward", "miopen_convolution_backward")
        for part in PARTS
    },
}
PRODUCTS = {name: by_record(OPERATORS[f"aten::{name}"]) for name in ("mm", "addmm")}


def cudnn(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's convolutions with the launches before them."""
    return [
        replace(piece, launches=CUDNN_LAUNCHES) if piece.op == CONV else piece for piece in rule(op)
    ]


def miopen(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's convolutions, each with its operands to the layout of its kernels and back.

    Two transposes in, a fill of the result, one transpose out; the gradient of the weight is added
    up in fp32 and cast. Source: the kernels of a ResNet trace on MI300X in bf16.
    """
    return [each for piece in rule(op) for each in _transposed(piece)]


def _transposed(piece: Piece) -> Sequence[Piece]:
    if piece.op != CONV:
        return (piece,)
    *read, written = operands(piece)
    layouts = [
        Piece("transpose_copy", {"rows": rows, "cols": cols}, piece.dtype)
        for rows, cols in (*read, written)
    ]
    zeros = Piece("fill", {"rows": written[0], "cols": written[1]}, piece.dtype)
    cast = Piece(
        "elementwise", {"elements": written[0] * written[1], "reads": CAST_READS}, piece.dtype
    )
    is_summed = piece.direction == "bwd_weight" and piece.dtype != "fp32"
    return (*layouts[:2], zeros, piece, *(cast,) * is_summed, layouts[2])


def operands(piece: Piece) -> tuple[tuple[float, float], ...]:
    """(rows, cols) of what a convolution reads, reads and writes, in order; a row per channel."""
    batch, ins, outs, groups = (
        piece.dims[name] for name in ("batch", "in_channels", "out_channels", "groups")
    )
    dims = {name: np.full(1, value) for name, value in {**OPS[CONV].defaults, **piece.dims}.items()}
    image, made, kernel = (float(area(dims)[0]) for area in (input_area, output_area, kernel_area))
    values, result, weight = (
        (batch * ins, image),
        (batch * outs, made),
        (outs * ins / groups, kernel),
    )
    order = {
        "fwd": (values, weight, result),
        "bwd_data": (result, weight, values),
        "bwd_weight": (values, result, weight),
    }
    return order[piece.direction]


def split_k(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's products, those with a split contraction as two launches."""
    return [
        replace(piece, launches=SPLIT_K_LAUNCHES) if is_split(piece) else piece
        for piece in rule(op)
    ]


def is_split(product: Piece) -> bool:
    """Whether cuBLAS splits the contraction."""
    m, n, k = (product.dims[name] for name in "mnk")
    tiles = ceil(m / TILE) * ceil(n / TILE)
    return min(m, n) > 1 and tiles <= MAX_TILES and k >= MIN_K


for _name, _rule in CONVOLUTIONS.items():
    LOWERINGS.register(f"cuda/aten::{_name}")(partial(cudnn, _rule))
    LOWERINGS.register(f"rocm/aten::{_name}")(partial(miopen, _rule))
for _name, _rule in PRODUCTS.items():
    LOWERINGS.register(f"cuda/aten::{_name}")(partial(split_k, _rule))
