"""Matrix products, attention, convolutions and recurrent layers.

`s_kv` keys per sequence (0: `past + s`), `kv_heads` heads of keys and values (0: as many as
queries), a `window_size` (0: all keys), `causal` = 1 for a triangular mask.

Square by `kernel_size input_size stride padding`; `kernel_h`, `kernel_w` and so on say otherwise
(0: square). 1-d is `input_h = kernel_h = 1`.
"""

from __future__ import annotations

from functools import partial

from perfmodel.ops.spec import formula, op

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
_OWN = [f"{name}_{side}" for name in ("kernel", "input", "stride", "pad") for side in "hw"]


def _side(own: str, square: str, side: str) -> str:
    return f"where({own}_{side} > 0, {own}_{side}, {square})"


def _outputs(side: str) -> str:
    padded = f"{_side('input', 'input_size', side)} + 2*{_side('pad', 'padding', side)}"
    reach = f"dilation*({_side('kernel', 'kernel_size', side)} - 1)"
    stride = _side("stride", "stride", side)
    return f"maximum(floor(({padded} - {reach} - 1)/{stride}) + 1, 1)"


_KERNEL, _INPUT = (
    f"({_side(name, square, 'h')}*{_side(name, square, 'w')})"
    for name, square in (("kernel", "kernel_size"), ("input", "input_size"))
)
_OUTPUT = f"({_outputs('h')}*{_outputs('w')})"
# Weights per pair of channels; pixels per channel of the input, and of the output.
kernel_area, input_area, output_area = map(formula, (_KERNEL, _INPUT, _OUTPUT))
_READ, _MADE = f"(batch*in_channels*{_INPUT})", f"(batch*out_channels*{_OUTPUT})"
_WEIGHTS = f"(out_channels*in_channels/groups*{_KERNEL})"
op(
    "conv2d",
    CONVOLUTION,
    "batch in_channels out_channels",
    flop=f"2*{_MADE}*in_channels/groups*{_KERNEL}",
    read=f"item*({_READ} + {_WEIGHTS})",
    written=f"item*{_MADE}",
    directions="fwd bwd_data bwd_weight",
    other_directions={
        "bwd_data": {"read": f"item*({_MADE} + {_WEIGHTS})", "written": f"item*{_READ}"},
        "bwd_weight": {"read": f"item*({_READ} + {_MADE})", "written": f"item*{_WEIGHTS}"},
    },
    defaults={"kernel_size": 0, "input_size": 0, "stride": 1, "padding": 0}
    | {"groups": 1, "dilation": 1, "depth": 0, "channels_last": 0}
    | dict.fromkeys(_OWN, 0),
    one_of=(("kernel_size", "kernel_h"), ("input_size", "input_h"), ("stride",), ("groups",)),
    holds=("in_channels % groups == 0", "out_channels % groups == 0"),
)
