"""Physics of sorts, scans and selections: how often they pass over their keys."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.ops.spec import Dims, Floats

_RADIX_BITS = 8.0
_ON_CHIP_KEYS = 4096.0
"""Keys that one thread block orders without going back to memory."""
_LAUNCH_US = 2.0
"""One more kernel of the same op: its start and the wait for its predecessor."""
_MERGED_OPS = {"unique": 2.0, "run_length_encode": 1.0, "cumsum": 1.0, "topk": 2.0}
"""Passes of ops that do not order all their keys."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Passes over the keys at the memory's rate, each with its kernels' starts."""
    passes = _passes(group.op, group.dims, group.item_bytes)
    memory = transfer_us(passes * group.moved_bytes, device)
    latency = _LAUNCH_US * (1.0 + np.where(passes > 1.0, 1.5 * passes, 0.0))
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + latency,
        shares={"memory": memory, "latency": latency},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={"passes": passes},
    )


def _passes(op: str, dims: Dims, item: Floats) -> Floats:
    if op in ("sort", "sort_pairs"):
        bits = np.where(dims["key_bits"] > 0, dims["key_bits"], 8.0 * item)
        radix = 1.5 * np.ceil(bits / _RADIX_BITS)
        return np.where(dims["cols"] <= _ON_CHIP_KEYS, 1.0, radix)
    usual = np.full(len(item), _MERGED_OPS.get(op, 1.0))
    if op == "unique":
        return usual + np.where(dims["cols"] <= _ON_CHIP_KEYS, 1.0, 1.5 * 8.0 * item / _RADIX_BITS)
    return usual
