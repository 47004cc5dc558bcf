"""Convolutions and pooling over windows of images, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import optional_tensor, output, size
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries, tensor
from perfmodel.lowering.rules.elementwise import pointwise
from perfmodel.lowering.rules.reduction import reduced
from perfmodel.ops.graph import Argument, Op, Tensor, argument, integers

Numbers = tuple[int, ...]


def per_side(numbers: Numbers | None, count: int) -> Numbers | None:
    """One number per dimension of the image; None where nothing is told."""
    if numbers is None or not numbers:
        return None
    return numbers if len(numbers) == count else numbers * count


def geometry(
    values: Tensor,
    weight: Tensor,
    result: Tensor | None,
    *,
    stride: Numbers | None,
    padding: Numbers | None,
    dilation: Numbers | None,
    groups: int | None,
) -> dict[str, float]:
    """Dims of `conv2d`; a third dimension of space is folded into batch and channels."""
    count = len(values.shape) - 2
    if count not in (1, 2, 3) or len(weight.shape) != count + 2 or not size(weight.shape):
        raise MissingArguments
    image, kernel = values.shape[2:], weight.shape[2:]
    made = result.shape[2:] if result is not None and len(result.shape) == count + 2 else None
    step = per_side(stride, count)
    if (made and not size(made)) or (step and min(step) < 1):
        raise MissingArguments
    if step is None:
        step = (
            tuple(max(round(a / b), 1) for a, b in zip(image, made, strict=True))
            if made
            else (1,) * count
        )
    pad = per_side(padding, count) or tuple(k // 2 for k in kernel)
    spread = per_side(dilation, count) or (1,) * count
    batch, depth = values.shape[0], 1
    if count == 3:
        depth = kernel[0]
        batch *= max((image[0] + 2 * pad[0] - spread[0] * (kernel[0] - 1) - 1) // step[0] + 1, 1)
    lead = (1,) * (2 - count) if count < 2 else ()
    height = (
        (*lead, *image)[-2:],
        (*lead, *kernel)[-2:],
        (*lead, *step)[-2:],
        (*(0,) * len(lead), *pad)[-2:],
    )
    dims: dict[str, float] = {
        "batch": float(batch),
        "in_channels": float(values.shape[1] * depth),
        "out_channels": float(weight.shape[0]),
        "groups": float(groups or max(values.shape[1] // weight.shape[1], 1)),
        "dilation": float(spread[-1]),
    }
    if count == 3:
        dims["depth"] = float(depth)
    if values.shape[1] > 1 and values.strides[1:2] == (1,):
        dims["channels_last"] = 1.0
    for name, (h, w) in zip(("input", "kernel", "stride", "pad"), height, strict=True):
        dims |= square(name, h, w)
    return dims


def square(name: str, height: int, width: int) -> dict[str, float]:
    """One dim for both sides, and each where they differ."""
    one = {"input": "input_size", "kernel": "kernel_size", "pad": "padding"}.get(name, name)
    if height == width:
        return {one: float(height)}
    return {f"{name}_h": float(height), f"{name}_w": float(width), one: float(min(height, width))}


def _forward(op: Op, values: Tensor, weight: Tensor, numbers: Sequence[int]) -> Sequence[Piece]:
    """`numbers`: positions of stride, padding, dilation and groups among the arguments."""
    if not size(values.shape):
        return ()
    dims = _dims(op, values, weight, output(op), numbers)
    is_guessed = integers(op, numbers[0]) is None and output(op) is None
    return (Piece("conv2d", dims, values.dtype, guessed=is_guessed),)


def _dims(
    op: Op, values: Tensor, weight: Tensor, result: Tensor | None, numbers: Sequence[int]
) -> dict[str, float]:
    """Dims of `conv2d` by the arguments of `op` at `numbers`."""
    stride, padding, dilation = (integers(op, at) for at in numbers[:3])
    return geometry(
        values,
        weight,
        result,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=_groups(argument(op, numbers[3])),
    )


def _groups(value: Argument) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_NUMBERS = {
    **dict.fromkeys(("cudnn_convolution", "cudnn_convolution_relu"), (3, 2, 4, 5)),
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution"), (4, 3, 5, 6)
    ),
    **dict.fromkeys(
        ("_conv_depthwise2d", "slow_conv2d_forward", "_slow_conv2d_forward"), (4, 5, 6, 99)
    ),
}
"""Where a library's call has stride, padding, dilation and groups among its arguments."""


@LOWERINGS.register(*entries(*_NUMBERS))
def of_library(op: Op) -> Sequence[Piece]:
    """`(x, weight, …)`."""
    numbers = _NUMBERS[op.name.removeprefix("aten::")]
    return _forward(op, tensor(op, 0), tensor(op, 1), numbers)


def _with_bias(op: Op, pieces: Sequence[Piece]) -> Sequence[Piece]:
    bias, values, weight = optional_tensor(op, 2), tensor(op, 0), tensor(op, 1)
    if bias is None or not pieces:
        return pieces
    result = output(op)
    if result is not None:
        return (*pieces, *pointwise([result, bias], [result]))
    dims = pieces[0].dims
    pixels = dims["input_size"] / dims["stride"]
    made = Tensor((values.shape[0], weight.shape[0], int(pixels), int(pixels)), values.dtype)
    return (*pieces, *pointwise([made, bias], [made]))


@LOWERINGS.register(*entries("convolution", "_convolution", scope=LEAF))
def convolution(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`.

    Transposed, it is the gradient to the data of the convolution from its output to its input.
    """
    values, weight, numbers = tensor(op, 0), tensor(op, 1), (3, 4, 5, 8)
    if argument(op, 6) is not True:
        return _with_bias(op, _forward(op, values, weight, numbers))
    return _with_bias(op, _spread_out(op, values, weight, numbers, 7))


@LOWERINGS.register(*entries("cudnn_convolution_transpose"))
def cudnn_convolution_transpose(op: Op) -> Sequence[Piece]:
    """`(x, weight, padding, output_padding, stride, dilation, groups, …)`, as a profile has it."""
    return _spread_out(op, tensor(op, 0), tensor(op, 1), (4, 2, 5, 6), 3)


def _spread_out(
    op: Op, values: Tensor, weight: Tensor, numbers: Sequence[int], extra: int
) -> Sequence[Piece]:
    """A transposed convolution; `extra` is the argument that pads its output."""
    if not size(values.shape):
        return ()
    made = output(op) or _transposed_output(op, values, weight, numbers, extra)
    dims = _dims(op, made, weight, values, numbers)
    return (Piece("conv2d", dims, values.dtype, "bwd_data"),)


def _transposed_output(
    op: Op, values: Tensor, weight: Tensor, numbers: Sequence[int], padded: int
) -> Tensor:
    """What a transposed convolution makes, where the graph does not say."""
    count = len(values.shape) - 2
    stride, padding, spread = (per_side(integers(op, at), count) for at in numbers[:3])
    extra = per_side(integers(op, padded), count) or (0,) * count
    if stride is None or padding is None or spread is None:
        raise MissingArguments
    sides = zip(values.shape[2:], stride, padding, spread, weight.shape[2:], extra, strict=True)
    image = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, s, p, d, k, e in sides]
    groups = _groups(argument(op, numbers[3])) or 1
    return Tensor((values.shape[0], weight.shape[1] * groups, *image), values.dtype)


@LOWERINGS.register(*entries("conv2d", "conv1d", "conv3d", scope=LEAF))
def conv2d(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, stride, padding, dilation, groups)`."""
    return _with_bias(op, _forward(op, tensor(op, 0), tensor(op, 1), (3, 4, 5, 6)))


def _backward(
    op: Op, gradient: Tensor, values: Tensor, weight: Tensor, numbers: Sequence[int], mask: Argument
) -> Sequence[Piece]:
    """To the input and to the weights, as `output_mask` asks."""
    if not size(values.shape):
        return ()
    dims = _dims(op, values, weight, gradient, numbers)
    asked = mask if isinstance(mask, tuple) and len(mask) > 1 else (True, True, False)
    wanted = [name for name, on in zip(("bwd_data", "bwd_weight"), asked, strict=False) if on]
    bias = asked[2] if len(asked) > 2 else False
    return (
        *(Piece("conv2d", dims, values.dtype, direction) for direction in wanted),
        *(reduced("sum", gradient, (1,)) if bias else ()),
    )


@LOWERINGS.register(*entries("convolution_backward"))
def convolution_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, weight, bias_sizes, stride, padding, dilation, …, groups, mask)`."""
    parts = tensor(op, 0), tensor(op, 1), tensor(op, 2)
    return _backward(op, *parts, (4, 5, 6, 9), argument(op, 10))


@LOWERINGS.register(
    *entries("cudnn_convolution_backward", "miopen_convolution_backward", scope=LEAF),
    *entries("mkldnn_convolution_backward", scope=LEAF),
)
def cudnn_convolution_backward(op: Op) -> Sequence[Piece]:
    """`(x, gradient, weight, padding, stride, dilation, groups, …, mask)`, before PyTorch 1.10."""
    masks = [item for item in op.inputs[7:] if isinstance(item, tuple)]
    return _part(op, masks[-1] if masks else None)


@LOWERINGS.register(*entries("cudnn_convolution_backward_input miopen_convolution_backward_input"))
def backward_input(op: Op) -> Sequence[Piece]:
    """The gradient of the input, with the arguments of the whole (see `context.completed`)."""
    return _part(op, (True, False))


@LOWERINGS.register(
    *entries("cudnn_convolution_backward_weight", "miopen_convolution_backward_weight")
)
def backward_weight(op: Op) -> Sequence[Piece]:
    """The gradient of the weights, with the arguments of the whole."""
    return _part(op, (False, True))


def _part(op: Op, mask: Argument) -> Sequence[Piece]:
    values, gradient, weight = tensor(op, 0), tensor(op, 1), tensor(op, 2)
    return _backward(op, gradient, values, weight, (4, 3, 5, 6), mask)


USUAL_SIDES = 2
USUAL_STRIDE = 2
USUAL_KERNEL = 3


def windows(
    op: str,
    values: Tensor,
    pooled: int | None,
    kernel: tuple[int, ...] | None,
    stride: tuple[int, ...] | None,
    direction: str,
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
    *entries("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
    *entries("max_pool2d", "max_pool1d", "max_pool3d", "avg_pool1d", scope=LEAF),
)
def pool(op: Op) -> Sequence[Piece]:
    """`(x, kernel_size, stride, …)`."""
    name = "avg_pool" if "avg" in op.name else "max_pool"
    result = output(op)
    pooled = size(result.shape) if result is not None else None
    kernel, stride = integers(op, 1), integers(op, 2)
    return windows(name, tensor(op, 0), pooled, kernel, stride, "fwd", _sides(op))


def _sides(op: Op) -> int:
    """Dimensions of the windows, by the op's name."""
    return next(int(each[0]) for each in op.name.split("pool")[1:] if each[:1].isdigit())


@LOWERINGS.register(
    *entries("max_pool2d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward")
)
def pool_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, kernel_size, stride, …)`."""
    name = "avg_pool" if "avg" in op.name else "max_pool"
    pooled = size(tensor(op, 0).shape)
    kernel, stride = integers(op, 2), integers(op, 3)
    return windows(name, tensor(op, 1), pooled, kernel, stride, "bwd", _sides(op))


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
