"""Scaled dot-product attention in one kernel: `b` sequences of `s` queries, `heads` of `head_dim`.

`s_kv` keys per sequence (0: `past + s`), `kv_heads` heads of keys and values (0: as many as
queries), a `window_size` (0: all keys), `causal` = 1 for a triangular mask.
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec, Work

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


def _flop(products: float) -> Work:
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
        flop=_flop(FORWARD_PRODUCTS),
        read_bytes=lambda d, item: item * (_queries(d) + _keys_and_values(d)),
        written_bytes=lambda d, item: item * _queries(d),
        directions=("fwd", "bwd"),
        other_directions={
            "bwd": OpSpec(
                family=ATTENTION,
                dims=DIMS,
                defaults=DEFAULTS,
                flop=_flop(BACKWARD_PRODUCTS),
                read_bytes=lambda d, item: item * (3.0 * _queries(d) + _keys_and_values(d)),
                written_bytes=lambda d, item: item * (_queries(d) + _keys_and_values(d)),
            )
        },
    )
)
