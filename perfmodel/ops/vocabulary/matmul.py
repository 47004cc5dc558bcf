"""Matrix products, attention and convolutions.

`s_kv` keys per sequence (0: `past + s`), `kv_heads` heads of keys and values (0: as many as
queries), a `window_size` (0: all keys), `causal` = 1 for a triangular mask.

Square by `kernel_size input_size stride padding`; `kernel_h`, `kernel_w` and so on say otherwise
(0: square). 1-d is `input_h = kernel_h = 1`.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Bytes, Dims, OpSpec, Work

MATMUL = "matmul"


def _read_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    operands = dims["b"] * (dims["m"] * dims["k"] + dims["k"] * dims["n"])
    return item_bytes * (operands + dims.get("bias", 0.0) * dims["n"])


def _matmul(dims: tuple[str, ...], **defaults: float) -> OpSpec:
    return OpSpec(
        family=MATMUL,
        dims=dims,
        defaults=defaults,
        one_of=(("b",),),
        flop=lambda d: 2.0 * d["b"] * d["m"] * d["n"] * d["k"],
        read_bytes=_read_bytes,
        written_bytes=lambda d, item: item * d["b"] * d["m"] * d["n"],
    )


OPS.register("bmm")(_matmul(("b", "m", "n", "k")))
OPS.register("linear")(_matmul(("m", "n", "k"), b=1, bias=1))
OPS.register("mm")(_matmul(("m", "n", "k"), b=1))


ATTENTION = "attention"
DIMS = ("b", "s", "heads", "head_dim")
DEFAULTS = {"kv_heads": 0.0, "s_kv": 0.0, "past": 0.0, "window_size": 0.0, "causal": 0.0}
BACKWARD_PRODUCTS = 5.0
FORWARD_PRODUCTS = 2.0


def _keys(dims: Dims) -> Floats:
    return np.where(dims["s_kv"] > 0, dims["s_kv"], dims["past"] + dims["s"])


def _pairs(dims: Dims) -> Floats:
    """Pairs of query and key that are not masked, per head and sequence."""
    queries, keys = dims["s"], _keys(dims)
    offset = np.maximum(keys - queries, 0.0)
    triangular = queries * offset + queries * (np.minimum(queries, keys) + 1.0) / 2.0
    pairs = np.where(dims["causal"] > 0, triangular, queries * keys)
    window = np.where(dims["window_size"] > 0, dims["window_size"], keys)
    return np.minimum(pairs, queries * window)


def _attention_flop(products: float) -> Work:
    return lambda d: 2.0 * products * d["b"] * d["heads"] * d["head_dim"] * _pairs(d)


def _queries(dims: Dims) -> Floats:
    return dims["b"] * dims["s"] * dims["heads"] * dims["head_dim"]


def _keys_and_values(dims: Dims) -> Floats:
    heads = np.where(dims["kv_heads"] > 0, dims["kv_heads"], dims["heads"])
    return 2.0 * dims["b"] * _keys(dims) * heads * dims["head_dim"]


OPS.register("attention")(
    OpSpec(
        family=ATTENTION,
        dims=DIMS,
        defaults=DEFAULTS,
        flop=_attention_flop(FORWARD_PRODUCTS),
        read_bytes=lambda d, item: item * (_queries(d) + _keys_and_values(d)),
        written_bytes=lambda d, item: item * _queries(d),
        directions=("fwd", "bwd"),
        other_directions={
            "bwd": OpSpec(
                family=ATTENTION,
                dims=DIMS,
                defaults=DEFAULTS,
                flop=_attention_flop(BACKWARD_PRODUCTS),
                read_bytes=lambda d, item: item * (3.0 * _queries(d) + _keys_and_values(d)),
                written_bytes=lambda d, item: item * (_queries(d) + _keys_and_values(d)),
            )
        },
    )
)


# Attention of HSTU over sequences of many lengths: `tokens` positions in all, `pairs` of query and
# key that are not masked (half the sum of squared lengths, where causal), a pointwise SiLU in place
# of the softmax. `cutlass` = 1: kernels that overlap it with the products; else Triton's.
# `sequences`: how many there are, 0 where all are whole numbers of blocks long.
# Backward: scores again, then the gradients of scores, values, queries and keys.
_JAGGED = ("tokens", "pairs", "heads", "head_dim", "value_dim")


def _jagged_flop(of_keys: float, of_values: float) -> Work:
    def flop(d: Dims) -> Floats:
        widths = of_keys * d["head_dim"] + of_values * d["value_dim"]
        return 2.0 * d["pairs"] * d["heads"] * widths

    return flop


def _jagged_elements(of_keys: float, of_values: float) -> Bytes:
    def moved(d: Dims, item: Floats) -> Floats:
        widths = of_keys * d["head_dim"] + of_values * d["value_dim"]
        return item * d["tokens"] * d["heads"] * widths

    return moved


def _jagged_attention(
    flop: tuple[float, float],
    read: tuple[float, float],
    written: tuple[float, float],
    **more: OpSpec,
) -> OpSpec:
    return OpSpec(
        family="jagged_attention",
        dims=_JAGGED,
        defaults={"cutlass": 0.0, "bias_buckets": 0.0, "sequences": 0.0},
        flop=_jagged_flop(*flop),
        read_bytes=_jagged_elements(*read),
        written_bytes=_jagged_elements(*written),
        directions=("fwd", "bwd", "bwd_bias"),
        other_directions=more,
    )


OPS.register("jagged_attention")(
    _jagged_attention(
        (1.0, 1.0),
        (2.0, 1.0),
        (0.0, 1.0),
        bwd=_jagged_attention((3.0, 2.0), (2.0, 2.0), (2.0, 1.0)),
        bwd_bias=_jagged_attention((1.0, 1.0), (2.0, 2.0), (0.0, 0.0)),
    )
)


CONVOLUTION = "convolution"
_OWN = {f"{name}_{side}": 0.0 for name in ("kernel", "input", "stride", "pad") for side in "hw"}


def kernel_area(dims: Dims) -> Floats:
    """Weights per pair of channels."""
    return _area(_sides(dims, "kernel", "kernel_size"))


def input_area(dims: Dims) -> Floats:
    """Pixels per channel of the input."""
    return _area(input_sides(dims))


def input_sides(dims: Dims) -> Floats:
    """Rows and columns of the input, `[2, n]`."""
    return _sides(dims, "input", "input_size")


def output_area(dims: Dims) -> Floats:
    """Pixels per channel of the output."""
    return _area(output_sides(dims))


def output_sides(dims: Dims) -> Floats:
    """Rows and columns of the output, `[2, n]`."""
    padding, stride = _sides(dims, "pad", "padding"), _sides(dims, "stride", "stride")
    reach = dims["dilation"] * (_sides(dims, "kernel", "kernel_size") - 1.0)
    padded = input_sides(dims) + 2.0 * padding
    return np.maximum(np.floor((padded - reach - 1.0) / stride) + 1.0, 1.0)


def _area(sides: Floats) -> Floats:
    return np.asarray(sides[0] * sides[1])


def _sides(dims: Dims, own: str, square: str) -> Floats:
    sides = np.array([dims[f"{own}_h"], dims[f"{own}_w"]])
    return np.where(sides > 0, sides, dims[square])


def _input(dims: Dims) -> Floats:
    return dims["batch"] * dims["in_channels"] * input_area(dims)


def _output(dims: Dims) -> Floats:
    return dims["batch"] * dims["out_channels"] * output_area(dims)


def _weights(dims: Dims) -> Floats:
    return dims["out_channels"] * dims["in_channels"] / dims["groups"] * kernel_area(dims)


def _convolution(read: tuple[str, str], written: str, **more: OpSpec) -> OpSpec:
    size = {"input": _input, "output": _output, "weights": _weights}
    return OpSpec(
        family=CONVOLUTION,
        dims=("batch", "in_channels", "out_channels"),
        defaults={"kernel_size": 0.0, "input_size": 0.0, "stride": 1.0, "padding": 0.0}
        | {"groups": 1.0, "dilation": 1.0, "depth": 0.0, "channels_last": 0.0}
        | _OWN,
        one_of=(("kernel_size", "kernel_h"), ("input_size", "input_h"), ("stride",), ("groups",)),
        flop=lambda d: 2.0 * _output(d) * d["in_channels"] / d["groups"] * kernel_area(d),
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
