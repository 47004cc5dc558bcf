"""Physics of layers of experts: grouped products over the experts that tokens are sent to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu import matmul
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import bound_us, matrix_flop_per_us, transfer_us
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import Dims

_C, _KERNEL = coefficients("gpu.experts"), coefficients("gpu.kernel")
_RANKS = (np.arange(_C.ranks)[:, None] + 0.5) / _C.ranks
"""Of experts by their load, as shares: a few stand for all."""


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Two batched products over the experts that are hit, each of which is read once; then what
    sorts, gathers, gates and adds up."""
    dims, item, count = group.dims, group.item_bytes, len(group.index)
    hidden, inter, routed = dims["hidden"], dims["inter"], dims["tokens"] * dims["topk"]
    hit, most = loads(dims)
    each = routed / hit
    texts = (("bmm",) * count, tuple(group.dtypes), ("fwd",) * count, (KERNEL,) * count)
    first, second = (
        matmul.analyse(Rows(*texts, {"b": hit, "m": each, "n": n, "k": k}), device)
        for n, k in ((2.0 * inter, hidden), (hidden, inter))
    )
    beside = transfer_us(item * routed * (inter + 2.0 * (inter + hidden)), device)
    weights = item * hit * hidden * (2.0 * inter + inter)
    peak_us = group.flop / matrix_flop_per_us(device, group.dtypes)
    bound = np.maximum(peak_us, bound_us(group.written_bytes + weights, device))
    busy = np.maximum(first.kernel_us + second.kernel_us, bound)
    group = replace(group, read_bytes=item * dims["tokens"] * hidden + weights)
    return group.analysis(
        bound_us=bound,
        kernel_us=busy + beside + _C.launches * _KERNEL.start_us,
        shares={name: own + second.shares[name] for name, own in first.shares.items()},
        features={"peak_us": peak_us, "hit": hit, "each": each, "uneven": most / each}
        | {"columns": second.features["tile_columns"], "weights_us": transfer_us(weights, device)},
    )


def loads(dims: Dims) -> tuple[Floats, Floats]:
    """(experts that are hit, tokens of the most loaded one), as expected, `[n]` each.

    All alike, tokens are dealt out in turn; else the load of the expert of rank r falls as
    r**-skew, and who is hit is drawn.
    """
    experts, skew = dims["experts"], dims["skew"]
    routed = dims["tokens"] * dims["topk"]
    falls = np.maximum(experts * _RANKS, 1.0) ** -skew
    expected = routed * falls / (experts * falls.mean(axis=0))
    expected = np.minimum(expected, dims["tokens"])
    drawn = experts * -np.expm1(-expected).mean(axis=0)
    drawn = np.maximum(drawn, np.minimum(dims["topk"], experts))  # those of a token are distinct
    hit = np.where(skew > 0.0, drawn, np.minimum(experts, routed))
    return np.maximum(hit, 1.0), np.maximum(expected[0], routed / np.maximum(hit, 1.0))
