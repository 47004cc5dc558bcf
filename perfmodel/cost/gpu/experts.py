"""Physics of layers of experts: grouped products over the experts that tokens are sent to."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.matmul import fastest, overlapped
from perfmodel.cost.gpu.rates import bound_us, has_matrix_units, matrix_flop_per_us, transfer_us
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims

_C, _KERNEL = coefficients("gpu.experts"), coefficients("gpu.kernel")
_RANKS = (np.arange(_C.ranks)[:, None] + 0.5) / _C.ranks
"""Of experts by their load, as shares: a few stand for all."""


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Two products over every expert that is hit, each of which is read once, and what sorts,
    gates and adds up.

    The tokens of an expert fill whole tiles, and the most loaded one runs on after the others.
    """
    dims, item = group.dims, group.item_bytes
    hidden, inter, routed = dims["hidden"], dims["inter"], dims["tokens"] * dims["topk"]
    hit, most = loads(dims)
    each = routed / hit
    peak = matrix_flop_per_us(device, group.dtypes)
    on_units = has_matrix_units(device, group.dtypes)
    rate = peak * device.gemm_peak_frac
    compute, memory, cache = np.zeros((3, len(hit)))
    busy = np.zeros(len(hit))
    for n, k in ((2.0 * inter, hidden), (hidden, inter)):
        tiling = fastest(hit, each, n, k, item, rate, device, on_units)
        moving = transfer_us(item * (hit * n * k + routed * (n + k)), device)
        busy += overlapped(tiling.time_us, moving, group.dtypes, device)
        compute, memory, cache = compute + tiling.time_us, memory + moving, cache + tiling.l2_us
    beside = transfer_us(item * routed * (inter + 2.0 * (inter + hidden)), device)
    weights = item * hit * hidden * (2.0 * inter + inter)
    bound = np.maximum(group.flop / peak, bound_us(group.written_bytes + weights, device))
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(busy, bound) + beside + _C.launches * _KERNEL.start_us,
        shares={"compute": compute, "memory": memory + beside, "cache": cache},
        features={
            "peak_us": group.flop / peak,
            "hit": hit,
            "each": each,
            "uneven": most / each,
            "columns": tiling.tile_columns,
            "weights_us": transfer_us(weights, device),
        },
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
    hit = np.where(skew > 0.0, drawn, np.minimum(experts, routed))
    return np.maximum(hit, 1.0), np.maximum(expected[0], routed / np.maximum(hit, 1.0))
