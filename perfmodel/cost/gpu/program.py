"""What a kernel takes inside a program, where nothing of its operands waits in the cache.

A benchmark calls one kernel over and over: operands up to the size of the L2 come from there. In
a step the kernels before have filled it, and what is written goes to memory in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate
from perfmodel.cost.gpu.analysis import Group, among_others, groups_of
from perfmodel.cost.gpu.heuristic import TIMINGS, floors_of, measured_us
from perfmodel.cost.gpu.rates import stream_bytes_per_us, transfer_us
from perfmodel.cost.gpu.reductions import reduced_us, softmax_us
from perfmodel.cost.gpu.streaming import (
    accumulated_us,
    added_us,
    chunks_us,
    indexing_us,
    joined_by_vectors,
    joined_us,
    programs_us,
    selected_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, Rows
from perfmodel.ops.spec import OPS

STREAMING_FAMILIES = ("vector", "optimizer", "matmul", "pooling")
_C, _STREAMING = coefficients("gpu.program"), coefficients("gpu.streaming")


@dataclass(frozen=True)
class OpBehaviour:
    """What kernels of an op take in addition to moving each operand once."""

    like: str = ""
    """Under which name its coefficients are filed."""
    sectors: bool = False
    """Rows of a table lie anywhere: each takes whole sectors of 32 bytes."""
    by_vectors: Callable[[Group, Device], Mask] | None = None
    """Which calls move whole vectors, so that each operand moves once however it lies."""
    whole_us: Callable[[Group, Device, Floats], Floats] | None = None
    """What it takes once started, if moving everything takes so long."""


_REDUCTION = OpBehaviour("reduction", whole_us=reduced_us)
_SOFTMAX = OpBehaviour("softmax", whole_us=softmax_us)
_SELECT = OpBehaviour("index_select", sectors=True, whole_us=selected_us)
_SCATTER = OpBehaviour("scatter", sectors=True)
_FUSED = tuple(f"optimizer_{name}" for name in ("adagrad", "adam", "adamw", "sgd"))
OP_BEHAVIOUR = {
    **dict.fromkeys(("sum", "mean", "amax", "vector_norm", "sum_rows"), _REDUCTION),
    **{op: OpBehaviour(op) for op in ("layer_norm", "rms_norm", "split", "transpose_copy")},
    "cat": OpBehaviour("cat", whole_us=joined_us, by_vectors=joined_by_vectors),
    **dict.fromkeys(("softmax", "log_softmax"), _SOFTMAX),
    **dict.fromkeys(("index_select", "embedding", "gather"), _SELECT),
    **dict.fromkeys(("index_put", "scatter"), _SCATTER),
    **dict.fromkeys(("index_add", "scatter_add"), replace(_SCATTER, whole_us=added_us)),
    **dict.fromkeys(("foreach", *_FUSED), OpBehaviour("foreach", whole_us=chunks_us)),
    "elementwise": OpBehaviour(whole_us=programs_us),
    "index_put_accumulate": OpBehaviour("accumulate", sectors=True, whole_us=accumulated_us),
}
"""Of ops that do more than stream."""
ROWS_ANYWHERE = frozenset(op for op, own in OP_BEHAVIOUR.items() if own.sectors)
_PLAIN = OpBehaviour()


def in_program(rows: Rows, device: Device, estimate: Estimate, pace: float = 1.0) -> Estimate:
    """`estimate`, raised for kernels behind other work, by a profiler or by events, to what moving
    every operand from and to memory takes once; for kernels called over and over, of which only
    physics tells, to what the op does in addition to moving.

    `pace` is how much longer this device's long streams take than usual ones. As far as
    measurements tell of an op (`measured_frac`), what it does in addition is in `estimate` already.

    Source: kernels of traces on A100, H100 and MI300X: 1.1 to 1.6 times bytes over peak bandwidth
    where operands lie alike, whatever their size, and 2.0 to 2.6 times where they do not.
    """
    cold_us = _cold_us(rows, device, pace, np.broadcast_to(estimate.measured_frac, len(rows)))
    at = np.flatnonzero((among_others(rows) | estimate.by_physics) & (cold_us > 0.0))
    raised = estimate.duration_us.copy()
    raised[at] = np.maximum(raised[at], measured_us(cold_us[at], *floors_of(rows)[:, at]))
    ratio = raised / np.maximum(estimate.duration_us, np.finfo(float).tiny)
    low_us, high_us = estimate.low_us * ratio, estimate.high_us * ratio
    return replace(estimate, duration_us=raised, low_us=low_us, high_us=high_us)


def shortest_kernel_us(launched_us: float) -> float:
    """The `kernel_floor_us` of a device whose smallest call takes so long behind other work."""
    return max(launched_us - TIMINGS[BEHIND_WORK].offset_us, 0.0) / _C.least


def _cold_us(rows: Rows, device: Device, pace: float, measured_frac: Floats) -> Floats:
    cold = np.zeros(len(rows))
    rate = stream_bytes_per_us(device) / pace
    for group in groups_of(rows):
        if OPS[group.op].family not in STREAMING_FAMILIES:
            continue
        own, moved = OP_BEHAVIOUR.get(group.op, _PLAIN), group.moved_bytes
        if own.sectors:
            moved = moved + _wasted_bytes(group)
        unknown = 1.0 - measured_frac[group.index]
        traffic = 1.0 + unknown * (_C.table("traffic").get(own.like, 1.0) - 1.0)
        if own.by_vectors:
            traffic = np.where(own.by_vectors(group, device), 1.0, traffic)
        elif "strided" in group.dims:
            traffic = traffic * np.where(group.dims["strided"] > 0, _C.strided, 1.0)
        once_us = np.where(group.in_program, moved / rate, transfer_us(moved, device))
        moving_us = np.maximum(traffic * once_us, indexing_us(group, device))
        if own.whole_us:
            moving_us = own.whole_us(group, device, moving_us)
        latency_us = unknown * _C.table("latency_us").get(own.like, 0.0)
        least = _C.least * device.kernel_floor_us
        cold[group.index] = np.maximum(_STREAMING.start_us + latency_us + moving_us, least)
    return cold


def _wasted_bytes(group: Group) -> Floats:
    """Of the sectors that rows of a table lie in, what is not theirs; no more than the table."""
    rows, row_bytes = group.dims["rows"], group.dims["cols"] * group.item_bytes
    passes = group.moved_bytes // (rows * row_bytes) - 1.0
    known = group.dims["hash_size"] > 0
    table_bytes = np.where(known, group.dims["hash_size"] * row_bytes, np.inf)
    sectors = rows * np.maximum(row_bytes, _C.sector_bytes)
    taken = np.minimum(sectors, np.maximum(table_bytes, rows * row_bytes))
    return np.clip(passes, 0.0, 2.0) * (taken - rows * row_bytes)
