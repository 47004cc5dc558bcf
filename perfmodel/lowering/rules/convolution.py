"""Convolutions and pooling over windows of images, forward and backward; how many launches a call
of a library takes on one target, where targets differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod

from perfmodel.lowering.arguments import by_record, output, pointwise, tensor
from perfmodel.lowering.piece import LEAF, MissingArguments, Piece, rule
from perfmodel.lowering.rules.vector import reduced
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers
from perfmodel.ops.operators import OPERATORS

Numbers = tuple[int, ...]
CONV = "conv2d"


def per_side(numbers: Numbers | None, count: int) -> Numbers | None:
    """One number per dimension of the image; None where nothing is told."""
    if numbers is None or not numbers:
        return None
    return numbers if len(numbers) == count else numbers * count


def layout(image: Tensor) -> dict[str, float]:
    """The dim of an image whose channels lie side by side."""
    is_last = len(image.shape) > 2 and image.shape[1] > 1 and image.strides[1:2] == (1,)
    return {"channels_last": 1.0} if is_last else {}


def geometry(
    op: Op, values: Tensor, weight: Tensor, result: Tensor | None, numbers: Numbers
) -> dict[str, float]:
    """Dims of `conv2d` from `values` to `result`; a third dimension of space is folded into batch
    and channels. `numbers`: where `op` has stride, padding, dilation and groups."""
    stride, padding, dilation = (integers(op, at) for at in numbers[:3])
    count = len(values.shape) - 2
    if count not in (1, 2, 3) or len(weight.shape) != count + 2 or not weight.elements:
        raise MissingArguments
    image, kernel = values.shape[2:], weight.shape[2:]
    made = result.shape[2:] if result is not None and len(result.shape) == count + 2 else None
    step = per_side(stride, count)
    if (made and not prod(made)) or (step and min(step) < 1):
        raise MissingArguments
    if step is None:
        step = tuple(max(round(a / b), 1) for a, b in zip(image, made or image, strict=True))
    pad = per_side(padding, count) or tuple(k // 2 for k in kernel)
    spread = per_side(dilation, count) or (1,) * count
    batch, depth = values.shape[0], 1
    if count == 3:
        depth = kernel[0]
        batch *= max((image[0] + 2 * pad[0] - spread[0] * (kernel[0] - 1) - 1) // step[0] + 1, 1)
    groups = integer(op, numbers[3]) or max(values.shape[1] // weight.shape[1], 1)
    dims: dict[str, float] = {
        "batch": float(batch),
        "in_channels": float(values.shape[1] * depth),
        "out_channels": float(weight.shape[0]),
        "groups": float(groups),
        "dilation": float(spread[-1]),
    }
    if count == 3:
        dims["depth"] = float(depth)
    dims |= layout(values)
    sides = {"input_size": image, "kernel_size": kernel, "stride": step, "padding": pad}
    for name, each in sides.items():  # one dim for both sides, and each where they differ
        height, width = each[-2:] if count > 1 else (int(name != "padding"), each[0])
        dims[name] = float(min(height, width))
        if height != width:
            own = name.removesuffix("_size").removesuffix("ding")
            dims |= {f"{own}_h": float(height), f"{own}_w": float(width)}
    return dims


ATEN, DIRECT, LIBRARY = (3, 4, 5, 8), (3, 4, 5, 6), (4, 3, 5, 6)
"""Where calls have stride, padding, dilation and groups among their arguments."""
_BY_LIBRARY: dict[str, Numbers] = {
    **dict.fromkeys(("cudnn_convolution", "cudnn_convolution_relu"), (3, 2, 4, 5)),
    **dict.fromkeys(("miopen_convolution", "miopen_depthwise_convolution"), LIBRARY),
    **dict.fromkeys(
        ("_conv_depthwise2d", "slow_conv2d_forward", "_slow_conv2d_forward"), (4, 5, 6, 99)
    ),
}
"""Calls of `(x, weight, …)`, without the bias of those that follow."""
_WITH_BIAS = dict.fromkeys(("convolution", "_convolution"), ATEN) | dict.fromkeys(
    ("conv1d", "conv2d", "conv3d"), DIRECT
)
_WITH_BIAS["mkldnn_convolution"] = LIBRARY  # a CPU's adds it itself


@rule(*_BY_LIBRARY)
@rule(*_WITH_BIAS, scope=LEAF)
def forward(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`, or as a
    library has it; the bias is added by a kernel of its own.

    Transposed, it is the gradient to the data of the convolution from its output to its input.
    """
    name, values, weight = op.name.removeprefix("aten::"), tensor(op, 0), tensor(op, 1)
    numbers = _BY_LIBRARY.get(name) or _WITH_BIAS[name]
    if numbers is ATEN and argument(op, 6) is True:
        pieces = _spread_out(op, ATEN, 7)
    elif values.elements:
        result = output(op)
        is_guessed = integers(op, numbers[0]) is None and result is None
        dims = geometry(op, values, weight, result, numbers)
        pieces = (Piece(CONV, dims, values.dtype, guessed=is_guessed),)
    else:
        return ()
    bias = argument(op, 2)
    if name not in _WITH_BIAS or not isinstance(bias, Tensor) or not pieces:
        return pieces
    pixels = int(pieces[0].dims["input_size"] / pieces[0].dims["stride"])
    image = values.shape[0], weight.shape[0], pixels, pixels
    result = output(op) or Tensor(image, values.dtype)
    return (*pieces, *pointwise([result, bias], [result]))


@rule("cudnn_convolution_transpose")
def cudnn_convolution_transpose(op: Op) -> Sequence[Piece]:
    """`(x, weight, padding, output_padding, stride, dilation, groups, …)`, as a profile has it."""
    return _spread_out(op, (4, 2, 5, 6), 3)


def _spread_out(op: Op, numbers: Numbers, padded: int) -> Sequence[Piece]:
    """A transposed convolution; `padded` is the argument that pads its output, whose size follows
    from the others where the graph does not say it."""
    values, weight = tensor(op, 0), tensor(op, 1)
    if not values.elements:
        return ()
    made = output(op)
    if made is None:
        count = len(values.shape) - 2
        stride, padding, spread = (per_side(integers(op, at), count) for at in numbers[:3])
        extra = per_side(integers(op, padded), count) or (0,) * count
        if stride is None or padding is None or spread is None:
            raise MissingArguments
        sides = zip(values.shape[2:], stride, padding, spread, weight.shape[2:], extra, strict=True)
        image = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, s, p, d, k, e in sides]
        channels = weight.shape[1] * (integer(op, numbers[3]) or 1)
        made = Tensor((values.shape[0], channels, *image), values.dtype)
    dims = geometry(op, made, weight, values, numbers)
    return (Piece(CONV, dims, values.dtype, "bwd_data"),)


PARTS = {"input": (True, False), "weight": (False, True)}
_LIBRARY_BACKWARD = [f"{library}_convolution_backward" for library in ("cudnn", "miopen")]


@rule("convolution_backward")
@rule(*_LIBRARY_BACKWARD, "mkldnn_convolution_backward", scope=LEAF)
@rule(*(f"{name}_{part}" for name in _LIBRARY_BACKWARD for part in PARTS))
def backward(op: Op) -> Sequence[Piece]:
    """To the input, the weights and the bias, as a mask asks: `(gradient, x, weight, bias_sizes,
    stride, padding, dilation, …, groups, mask)`; of libraries, before PyTorch 1.10, `(x, gradient,
    weight, padding, stride, dilation, groups, …, mask)`, or of input or weight alone, with the
    arguments of the whole (see `context.self_contained`)."""
    first, second = tensor(op, 0), tensor(op, 1)
    if op.name == "aten::convolution_backward":
        gradient, values, numbers, mask = first, second, (4, 5, 6, 9), argument(op, 10)
    else:
        gradient, values, numbers = second, first, LIBRARY
        masks = [item for item in op.inputs[7:] if isinstance(item, tuple)]
        mask = PARTS.get(op.name.rpartition("_")[2]) or (masks[-1] if masks else None)
    if not values.elements:
        return ()
    dims = geometry(op, values, tensor(op, 2), gradient, numbers)
    wanted = mask if isinstance(mask, tuple) and len(mask) > 1 else (True, True)
    directions = zip(("bwd_data", "bwd_weight"), wanted, strict=False)
    return (
        *(Piece(CONV, dims, values.dtype, direction) for direction, on in directions if on),
        *(reduced("sum", gradient, (1,)) if wanted[2:] and wanted[2] else ()),
    )


USUAL_SIDES, USUAL_STRIDE, USUAL_KERNEL = 2, 2, 3


@rule("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d")
@rule("max_pool2d max_pool1d max_pool3d avg_pool1d", scope=LEAF)
@rule("max_pool2d_with_indices_backward avg_pool2d_backward avg_pool3d_backward")
@rule("_adaptive_avg_pool2d adaptive_max_pool2d _adaptive_avg_pool2d_backward")
def pool(op: Op) -> Sequence[Piece]:
    """`(x, kernel_size, stride, …)`; backward the gradient comes first. Adaptive: `(x,
    output_size)`, to one pixel where not told. One kernel over windows; without an output, its size
    is taken from the stride."""
    is_backward, is_adaptive = op.name.endswith("_backward"), "adaptive" in op.name
    values = tensor(op, int(is_backward))
    made = tensor(op, 0) if is_backward else output(op)
    kernel, stride = integers(op, 1 + is_backward), integers(op, 2 + is_backward)
    sides = next(int(each[0]) for each in op.name.split("pool")[1:] if each[:1].isdigit())
    outputs = None if made is None else made.elements
    if is_adaptive:
        if not is_backward:
            outputs = prod(values.shape[:-2]) * prod(integers(op, 1) or (1,))
        kernel = stride = None
    total = values.elements
    if not total:
        return ()
    step = per_side(stride or kernel or (USUAL_STRIDE,), sides) or ()
    if not step or min(step) < 1:
        raise MissingArguments
    dims = {
        "elements": float(total),
        "outputs": float(outputs or max(total // prod(step), 1)),
        "kernel_size": float(prod(per_side(kernel or (USUAL_KERNEL,), sides) or ())) ** 0.5,
    }
    dims |= layout(values) | ({"sides": float(sides)} if sides != USUAL_SIDES else {})
    name = "avg_pool" if "avg" in op.name or is_adaptive else "max_pool"
    guessed = outputs is None and not stride and not kernel
    direction = "bwd" if is_backward else "fwd"
    return (Piece(name, dims, values.dtype, direction, guessed=guessed),)


TILE, MAX_TILES, MIN_K = 64, 24, 256
"""cuBLAS splits the contraction, and adds up in a second kernel, when so few tiles share so long a
one. Source: chosen on the fp32 products of one shared A100 trace (right for 119 of 132 shapes);
of traces not looked at, right for 16 of 19 on V100 (`tests/lowering/test_split_k.py`)."""
SPLIT_K_LAUNCHES = 2
"""The product, and the sum of its parts."""

LIBRARY_LAUNCHES = {"cuda": 2, "rocm": 5}
"""Per convolution: cuDNN prepares offsets or zeros first; MIOpen lays out what its kernels read and
write.

Source: means of two ResNet traces on V100 with PyTorch 1.9 (1.9 forward, 2.6 and 2.4 backward); the
kernels of one on MI300X (two transposes, a fill, the convolution, a transpose).
"""
_OF_ONE_LIBRARY = (
    *("cudnn_convolution", "miopen_convolution", "convolution_backward"),
    *(f"{name}_{part}" for name in _LIBRARY_BACKWARD for part in PARTS),
)


def of_library(op: Op, launches: int) -> Sequence[Piece]:
    """Convolutions with what a library launches beside them."""
    pieces = backward(op) if "backward" in op.name else forward(op)
    return [replace(p, launches=launches) if p.op == CONV else p for p in pieces]


for _target, _launches in LIBRARY_LAUNCHES.items():
    rule(*_OF_ONE_LIBRARY, target=_target)(partial(of_library, launches=_launches))


_PRODUCTS = {f"aten::{name}": by_record(OPERATORS[f"aten::{name}"]) for name in ("mm", "addmm")}


@rule(*_PRODUCTS, target="cuda")
def split_k(op: Op) -> Sequence[Piece]:
    """Products, those with a split contraction as two launches."""
    pieces = _PRODUCTS[op.name](op)
    return [replace(p, launches=SPLIT_K_LAUNCHES) if is_split(p) else p for p in pieces]


def is_split(product: Piece) -> bool:
    """Whether cuBLAS splits the contraction."""
    m, n, k = (product.dims[name] for name in "mnk")
    tiles = ceil(m / TILE) * ceil(n / TILE)
    return min(m, n) > 1 and tiles <= MAX_TILES and k >= MIN_K
