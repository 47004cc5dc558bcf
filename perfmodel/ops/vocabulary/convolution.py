"""2-d convolutions: forward, and backward to the input (`bwd_data`) and weights (`bwd_weight`).

Square by `kernel_size input_size stride padding`; `kernel_h`, `kernel_w` and so on say otherwise
(0: square). 1-d is `input_h = kernel_h = 1`.
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

CONVOLUTION = "convolution"
_OWN = {f"{name}_{side}": 0.0 for name in ("kernel", "input", "stride", "pad") for side in "hw"}


def kernel_area(dims: Dims) -> Floats:
    """Weights per pair of channels."""
    return _side(dims, "kernel", "kernel_size", "h") * _side(dims, "kernel", "kernel_size", "w")


def input_area(dims: Dims) -> Floats:
    """Pixels per channel of the input."""
    return _side(dims, "input", "input_size", "h") * _side(dims, "input", "input_size", "w")


def output_area(dims: Dims) -> Floats:
    """Pixels per channel of the output."""
    return _output_side(dims, "h") * _output_side(dims, "w")


def _side(dims: Dims, own: str, square: str, side: str) -> Floats:
    value = dims[f"{own}_{side}"]
    return np.where(value > 0, value, dims[square])


def _output_side(dims: Dims, side: str) -> Floats:
    padding = _side(dims, "pad", "padding", side)
    size = _side(dims, "input", "input_size", side)
    reach = dims["dilation"] * (_side(dims, "kernel", "kernel_size", side) - 1.0)
    stride = _side(dims, "stride", "stride", side)
    return np.maximum(np.floor((size + 2.0 * padding - reach - 1.0) / stride) + 1.0, 1.0)


def _input(dims: Dims) -> Floats:
    return dims["batch"] * dims["in_channels"] * input_area(dims)


def _output(dims: Dims) -> Floats:
    return dims["batch"] * dims["out_channels"] * output_area(dims)


def _weights(dims: Dims) -> Floats:
    return dims["out_channels"] * dims["in_channels"] / dims["groups"] * kernel_area(dims)


def _flop(dims: Dims) -> Floats:
    return 2.0 * _output(dims) * dims["in_channels"] / dims["groups"] * kernel_area(dims)


def _convolution(read: tuple[str, str], written: str, **more: OpSpec) -> OpSpec:
    size = {"input": _input, "output": _output, "weights": _weights}
    return OpSpec(
        family=CONVOLUTION,
        dims=("batch", "in_channels", "out_channels"),
        defaults={"kernel_size": 0.0, "input_size": 0.0, "stride": 1.0, "padding": 0.0}
        | {"groups": 1.0, "dilation": 1.0}
        | _OWN,
        one_of=(("kernel_size", "kernel_h"), ("input_size", "input_h")),
        flop=_flop,
        read_bytes=lambda d, item: item * (size[read[0]](d) + size[read[1]](d)),
        written_bytes=lambda d, item: item * size[written](d),
        directions=("fwd", "bwd_data", "bwd_weight"),
        other_directions=more,
    )


OPS.register("conv2d")(
    _convolution(
        ("input", "weights"),
        "output",
        bwd_data=_convolution(("output", "weights"), "input"),
        bwd_weight=_convolution(("input", "output"), "weights"),
    )
)
