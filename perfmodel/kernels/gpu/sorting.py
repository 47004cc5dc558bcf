"""Physics of sorts, scans and selections: how often they pass over their keys."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, by_op_and_direction, merged
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS, Dims, Floats

_RADIX_BITS = 8.0
_ON_CHIP_KEYS = 4096.0
"""Keys that one thread block orders without going back to memory."""
_LAUNCH_US = 2.0
"""One more kernel of the same op: its start and the wait for its predecessor."""
_MERGED_OPS = {"unique": 2.0, "run_length_encode": 1.0, "cumsum": 1.0, "topk": 2.0}
"""Passes of ops that do not order all their keys."""


def analyse(rows: Rows, device: Device) -> Analysis:
    """Passes over the keys at the memory's rate, each with its kernels' starts."""
    parts = [
        (index, _of(rows, op, way, index, device)) for op, way, index in by_op_and_direction(rows)
    ]
    return merged(len(rows), parts)


def _of(rows: Rows, op: str, direction: str, index: Ints, device: Device) -> Analysis:
    spec, dims = OPS[op].of(direction), rows.dims_of(op, index)
    item = rows.item_bytes(index)
    flop = spec.flop(dims)
    read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
    passes = _passes(op, dims, item)
    moved = passes * (read + written)
    memory = transfer_us(moved, device)
    latency = _LAUNCH_US * (1.0 + np.where(passes > 1.0, 1.5 * passes, 0.0))
    bound = bound_us(read + written, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + latency,
        shares={"memory": memory, "latency": latency},
        flop=flop,
        read_bytes=read,
        written_bytes=written,
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
