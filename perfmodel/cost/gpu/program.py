"""What a kernel takes inside a program, where nothing of its operands waits in the cache.

A benchmark calls one kernel over and over: operands up to the size of the L2 come from there. In
a step the kernels before have filled it, and what is written goes to memory in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate
from perfmodel.cost.gpu.analysis import Group, among_others, groups_of
from perfmodel.cost.gpu.heuristic import TIMINGS, floors_of, measured_us
from perfmodel.cost.gpu.rates import stream_bytes_per_us, transfer_us
from perfmodel.cost.gpu.reductions import layer_norm_us, reduced_us, softmax_us
from perfmodel.cost.gpu.streaming import (
    accumulate_waits_us,
    atomic_waits_us,
    cat_by_vectors,
    cat_waits_us,
    chunk_waits_us,
    gathered_us,
    indexing_us,
    programs_wait_us,
    scattered_us,
    select_waits_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, Rows
from perfmodel.ops.spec import OPS

STREAMING_FAMILIES = ("vector", "optimizer", "matmul", "pooling")
_C, _STREAMING = coefficients("gpu.program"), coefficients("gpu.streaming")


@dataclass(frozen=True)
class CacheState:
    """What kernels of an op take beside moving each operand once."""

    like: str = ""
    """Under which name its coefficients are filed."""
    sectors: bool = False
    """Rows of a table lie anywhere: each takes whole sectors of 32 bytes."""
    waited_us: Callable[[Group, Device], Floats] | None = None
    """What its threads take, each waiting for its own loads, however fast bytes move."""
    by_vectors: Callable[[Group, Device], Mask] | None = None
    """Which calls move whole vectors, so that each operand moves once; others wait for each load,
    however operands lie."""
    whole_us: Callable[[Group, Device, Floats], Floats] | None = None
    """What it takes once started, if moving everything takes so long; as that or what its threads
    take, the longer."""

    @property
    def latency_us(self) -> float:
        """Of steps that wait for one another, such as the tree of a reduction."""
        return _C.table("latency_us").get(self.like, 0.0)

    @property
    def traffic(self) -> float:
        """How often the operands move, or how badly they use what moves."""
        return _C.table("traffic").get(self.like, 1.0)


_REDUCTION = CacheState("reduction", whole_us=reduced_us)
_SOFTMAX = CacheState("softmax", whole_us=softmax_us)
_INDEX_ADD = CacheState("scatter", sectors=True, waited_us=atomic_waits_us)
_SELECT = CacheState("index_select", sectors=True, waited_us=select_waits_us)
_ACCUMULATE = CacheState("accumulate", sectors=True, waited_us=accumulate_waits_us)
_FUSED = tuple(f"optimizer_{name}" for name in ("adagrad", "adam", "adamw", "sgd"))
HABITS = {
    **dict.fromkeys(("sum", "mean", "amax", "vector_norm", "sum_rows"), _REDUCTION),
    **{op: CacheState(op) for op in ("rms_norm", "split", "transpose_copy")},
    "layer_norm": CacheState("layer_norm", whole_us=layer_norm_us),
    "elementwise": CacheState(waited_us=programs_wait_us),
    "cat": CacheState("cat", waited_us=cat_waits_us, by_vectors=cat_by_vectors),
    **dict.fromkeys(("softmax", "log_softmax"), _SOFTMAX),
    "index_put": CacheState("scatter", sectors=True),
    "scatter": CacheState("scatter", sectors=True, whole_us=scattered_us),
    "index_add": _INDEX_ADD,
    "scatter_add": replace(_INDEX_ADD, whole_us=scattered_us),
    **dict.fromkeys(("index_select", "embedding"), _SELECT),
    "gather": replace(_SELECT, waited_us=None, whole_us=gathered_us),
    "index_put_accumulate": _ACCUMULATE,
    **dict.fromkeys(("foreach", *_FUSED), CacheState("foreach", waited_us=chunk_waits_us)),
}
"""Of ops that do more than stream."""
_PLAIN = CacheState()


def in_program(
    rows: Rows,
    device: Device,
    estimate: Estimate,
    *,
    pace: float = 1.0,
    measured_share: Floats | None = None,
    by_physics: Mask | None = None,
) -> Estimate:
    """`estimate`, raised for kernels behind other work, by a profiler or by events, to what moving
    every operand from and to memory takes once; for kernels called over and over, of which only
    physics tells (`by_physics` `[n]`), to what the op does beside moving.

    `pace` is how much longer this device's long streams take than usual ones, `measured_share`
    `[n]` how much measurements of each op tell of it: of what such ops do beside moving, so much
    is in `estimate` already.

    Source: kernels of traces on A100, H100 and MI300X: 1.1 to 1.6 times bytes over peak bandwidth
    where operands lie alike, whatever their size, and 2.0 to 2.6 times where they do not.
    """
    nothing = np.zeros(len(rows))
    cold = _cold_us(rows, device, pace, nothing if measured_share is None else measured_share)
    is_shown = among_others(rows)
    if by_physics is not None:
        is_shown = is_shown | by_physics
    at = np.flatnonzero(is_shown & (cold > 0.0))
    raised = estimate.duration_us.copy()
    raised[at] = np.maximum(raised[at], measured_us(cold[at], *floors_of(rows)[:, at]))
    ratio = raised / np.maximum(estimate.duration_us, np.finfo(float).tiny)
    return replace(
        estimate,
        duration_us=raised,
        low_us=estimate.low_us * ratio,
        high_us=estimate.high_us * ratio,
    )


def shortest_kernel_us(launched_us: float) -> float:
    """The `kernel_floor_us` of a device whose smallest call takes so long behind other work."""
    return max(launched_us - TIMINGS[BEHIND_WORK].offset_us, 0.0) / _C.least


def _cold_us(rows: Rows, device: Device, pace: float, measured_share: Floats) -> Floats:
    cold = np.zeros(len(rows))
    rate = stream_bytes_per_us(device) / pace
    for group in groups_of(rows):
        if OPS[group.op].family not in STREAMING_FAMILIES:
            continue
        habit, moved = HABITS.get(group.op, _PLAIN), group.moved_bytes
        if habit.sectors:
            moved = moved + _wasted_bytes(group)
        is_strided = group.dims.get("strided", np.zeros(len(moved))) > 0
        unknown = 1.0 - measured_share[group.index]
        traffic, latency_us = (
            1.0 + unknown * (habit.traffic - 1.0),
            unknown * habit.latency_us,
        )
        if habit.by_vectors:
            traffic = np.where(habit.by_vectors(group, device), 1.0, traffic)
        if not habit.by_vectors:
            traffic = traffic * np.where(is_strided, _C.strided, 1.0)
        waited = habit.waited_us(group, device) if habit.waited_us else 0.0
        waited = np.maximum(waited, indexing_us(group, device))
        moving = traffic * np.where(group.in_program, moved / rate, transfer_us(moved, device))
        moving = np.maximum(moving, waited)
        if habit.whole_us:
            moving = habit.whole_us(group, device, moving)
        least = _C.least * device.kernel_floor_us
        cold[group.index] = np.maximum(_STREAMING.start_us + latency_us + moving, least)
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
