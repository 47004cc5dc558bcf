"""What a kernel takes inside a program, where nothing of its operands waits in the cache.

A benchmark calls one kernel over and over: operands up to the size of the L2 come from there. In
a step the kernels before have filled it, and what is written goes to memory in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Group, groups_of
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us
from perfmodel.kernels.gpu.memory import ACHIEVED_FRAC
from perfmodel.kernels.gpu.streaming import START_US
from perfmodel.kernels.gpu.waits import cat_waits_us, softmax_waits_us
from perfmodel.kernels.model import Estimate
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS, Floats

STREAMING_FAMILIES = ("vector", "optimizer", "matmul", "pooling")
STRIDED = 1.9
"""How much longer operands take that do not lie alike: neighbours in one are far apart in another,
so that of each 32-byte sector a part is used. Source: chosen on the traces that `HABITS` names."""


@dataclass(frozen=True)
class Habit:
    """What kernels of an op take beside moving each operand once."""

    latency_us: float = 0.0
    """Of steps that wait for one another, such as the tree of a reduction."""
    traffic: float = 1.0
    """How often the operands move, or how badly they use what moves."""
    sectors: bool = False
    """Rows lie anywhere: each takes whole sectors of 32 bytes."""
    waited_us: Callable[[Group, Device], Floats] | None = None
    """What its threads take, each waiting for its own loads, however fast bytes move."""


_REDUCTION = Habit(latency_us=4.0)
_GATHER = Habit(latency_us=3.0, sectors=True)
HABITS = {
    **dict.fromkeys(("sum", "mean", "amax", "vector_norm"), _REDUCTION),
    "sum_rows": Habit(latency_us=6.0),
    "layer_norm": Habit(latency_us=4.0, traffic=1.8),
    "rms_norm": Habit(latency_us=4.0, traffic=1.8),
    "cat": Habit(latency_us=2.0, traffic=1.3, waited_us=cat_waits_us),
    **dict.fromkeys(("softmax", "log_softmax"), Habit(waited_us=softmax_waits_us)),
    "split": Habit(traffic=1.3),
    "transpose_copy": Habit(traffic=STRIDED),
    **dict.fromkeys(("index_select", "gather", "embedding", "index_put", "scatter"), _GATHER),
    **dict.fromkeys(("index_add", "scatter_add", "index_put_accumulate"), _GATHER),
}
"""Of ops that do more than stream; one figure for all devices. Source: chosen on all kernels of the
traces at hand that record shapes (V100 and A100 DLRM, H100 and MI300X Qwen, H100 TimeSformer,
MI300X ResNet); none of them was held out, so errors on those traces are of the fit."""
SECTOR_BYTES = 32.0
_PLAIN = Habit()


def in_program(rows: Rows, device: Device, found: Estimate) -> Estimate:
    """`found`, raised for rows timed as `profiler_kernel` to what moving every operand from and to
    memory takes once.

    Source: kernels of traces on A100, H100 and MI300X: 1.1 to 1.6 times bytes over peak bandwidth
    where operands lie alike, whatever their size, and 2.0 to 2.6 times where they do not.
    """
    cold = _cold_us(rows, device)
    raised = np.maximum(found.duration_us, cold)
    ratio = raised / np.maximum(found.duration_us, np.finfo(float).tiny)
    return replace(
        found, duration_us=raised, low_us=found.low_us * ratio, high_us=found.high_us * ratio
    )


def _cold_us(rows: Rows, device: Device) -> Floats:
    cold = np.zeros(len(rows))
    rate = ACHIEVED_FRAC * hbm_bytes_per_us(device)
    for group in groups_of(rows):
        if OPS[group.op].family not in STREAMING_FAMILIES:
            continue
        habit, moved = HABITS.get(group.op, _PLAIN), group.moved_bytes
        if habit.sectors:
            row_bytes = group.dims["cols"] * group.item_bytes
            moved = moved * np.maximum(1.0, SECTOR_BYTES / row_bytes)
        is_strided = group.dims.get("strided", np.zeros(len(moved))) > 0
        factor = habit.traffic * np.where(is_strided, STRIDED, 1.0)
        waited = habit.waited_us(group, device) if habit.waited_us else 0.0
        moving = np.maximum(factor * moved / rate, waited)
        cold[group.index] = START_US + habit.latency_us + moving
    timed = np.array([timing == KERNEL for timing in rows.timing], bool)
    return np.where(timed, cold, 0.0)
