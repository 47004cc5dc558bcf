"""Matrix products, attention, convolutions and recurrent layers.

`s_kv` keys per sequence (0: `past + s`), `kv_heads` heads of keys and values (0: as many as
queries), a `window_size` (0: all keys), `causal` = 1 for a triangular mask.

Square by `kernel_size input_size stride padding`; `kernel_h`, `kernel_w` and so on say otherwise
(0: square). 1-d is `input_h = kernel_h = 1`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec, formula, op

MATMUL = "matmul"
_product = partial(op, family=MATMUL, flop="2*b*m*n*k", written="item*b*m*n", one_of=(("b",),))
_OPERANDS = "item*(b*(m*k + k*n))"
_product("bmm", dims="b m n k", read=_OPERANDS)
_product("mm", dims="m n k", defaults={"b": 1}, read=_OPERANDS)
_product("linear", dims="m n k", defaults={"b": 1, "bias": 1}, read="item*(b*(m*k + k*n) + bias*n)")

# A layer of experts: each of `tokens` goes to `topk` of them, whose gate and value are products
# over `hidden`, `inter` wide; then a product back. Every expert that is hit is read once. `skew`:
# of the power law by which their loads fall with their rank (0: all alike).
op(
    "moe",
    "experts",
    "tokens hidden inter topk experts",
    kernels=MATMUL,
    flop="6*tokens*topk*hidden*inter",
    read="item*(tokens*hidden + 3*hidden*inter*minimum(experts, tokens*topk))",
    written="item*tokens*hidden",
    defaults={"skew": 0},
    holds=("topk <= experts",),
)

_KEYS = "where(s_kv > 0, s_kv, past + s)"
_SEEN = f"where(window_size > 0, minimum({_KEYS}, window_size + s - 1), {_KEYS})"
# Keys of a sequence that some query of it sees.
_TRIANGULAR = f"(s*maximum({_KEYS} - s, 0) + s*(minimum(s, {_KEYS}) + 1)/2)"
# Pairs of query and key that are not masked, per head and sequence.
_PAIRS = (
    f"minimum(where(causal > 0, {_TRIANGULAR}, s*{_KEYS}), "
    f"s*where(window_size > 0, window_size, {_KEYS}))"
)
_QUERIES = "b*s*heads*head_dim"
_KEYS_HEADS = "where(kv_heads > 0, kv_heads, heads)"
_KEYS_VALUES = f"2*b*{_SEEN}*{_KEYS_HEADS}*head_dim"
keys, seen_keys, keys_heads, pairs = map(formula, (_KEYS, _SEEN, _KEYS_HEADS, _PAIRS))
# Two products forward, five backward. `decode_attention` has one query of each sequence, over more
# keys: other kernels, which share the keys out.
DECODE = "decode_attention"
decodes = formula(f"where(s == 1, {_KEYS}, 0) > 1")
op(
    f"attention {DECODE}",
    "attention",
    "b s heads head_dim",
    flop=f"4*b*heads*head_dim*{_PAIRS}",
    read=f"item*({_QUERIES} + {_KEYS_VALUES})",
    written=f"item*({_QUERIES})",
    directions="fwd bwd",
    other_directions={
        "bwd": {
            "flop": f"10*b*heads*head_dim*{_PAIRS}",
            "read": f"item*(3*({_QUERIES}) + {_KEYS_VALUES})",
            "written": f"item*({_QUERIES} + {_KEYS_VALUES})",
        }
    },
    defaults={"kv_heads": 0, "s_kv": 0, "past": 0, "window_size": 0, "causal": 0},
    holds=("heads % maximum(kv_heads, 1) == 0",),
)

# Attention of HSTU over sequences of many lengths: `tokens` positions in all, `pairs` of query and
# key that are not masked (half the sum of squared lengths, where causal), a pointwise SiLU in place
# of the softmax. `cutlass` = 1: kernels that overlap it with the products; else Triton's.
# `sequences`: how many there are, 0 where all are whole numbers of blocks long.
# Backward: scores again, then the gradients of scores, values, queries and keys.
_MOVED = "item*tokens*heads"
op(
    "jagged_attention",
    "jagged_attention",
    "tokens pairs heads head_dim value_dim",
    flop="2*pairs*heads*(head_dim + value_dim)",
    read=f"{_MOVED}*(2*head_dim + value_dim)",
    written=f"{_MOVED}*value_dim",
    directions="fwd bwd",
    other_directions={
        "bwd": {
            "flop": "2*pairs*heads*(3*head_dim + 2*value_dim)",
            "read": f"{_MOVED}*(2*head_dim + 2*value_dim)",
            "written": f"{_MOVED}*(2*head_dim + value_dim)",
        },
    },
    defaults={"cutlass": 0, "sequences": 0},
)

# All steps of a recurrent layer in one kernel, each sequence a block that keeps the weights; and
# the gradient of its biases, the sum of its gates' over all steps and sequences.
_GATES = "steps*batch*gates*hidden"
op(
    "persistent_rnn",
    "recurrent",
    "steps batch hidden gates",
    flop=f"2*({_GATES})*hidden",
    read=f"item*({_GATES} + gates*hidden**2)",
    written=f"item*({_GATES})/gates",
)
op(
    "rnn_bias_gradient",
    "recurrent",
    "steps batch hidden gates",
    kernels="reduction",
    flop=_GATES,
    read=f"item*({_GATES})",
    written="item*gates*hidden",
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
        holds=("in_channels % groups == 0", "out_channels % groups == 0"),
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
