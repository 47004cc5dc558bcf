"""What a kernel takes inside a program, where nothing of its operands waits in the cache.

A benchmark calls one kernel over and over: operands up to the size of the L2 come from there. In
a step the kernels before have filled it, and what is written goes to memory in the end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us
from perfmodel.kernels.gpu.memory import ACHIEVED_FRAC
from perfmodel.kernels.gpu.streaming import START_US
from perfmodel.kernels.model import Estimate
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS, Floats

STREAMING_FAMILIES = ("vector", "optimizer", "matmul", "pooling")
STRIDED = 1.9
"""How much longer operands take that do not lie alike: neighbours in one are far apart in another,
so that of each 32-byte sector a part is used."""
COPIES_OF_MANY = {"cat": 1.3, "split": 1.3}
"""Ops that walk over several tensors and compute where each element goes."""


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
    timed = np.array([timing == KERNEL for timing in rows.timing], bool)
    for op, index in rows.groups():
        if OPS[op].family not in STREAMING_FAMILIES:
            continue
        index = index[timed[index]]
        dims, item = rows.dims_of(op, index), rows.item_bytes(index)
        ways = np.array([rows.direction[row] for row in index.tolist()], object)
        for way in set(ways.tolist()):
            spec, mine = OPS[op].of(way), ways == way
            own = {name: values[mine] for name, values in dims.items()}
            moved = spec.read_bytes(own, item[mine]) + spec.written_bytes(own, item[mine])
            factor = COPIES_OF_MANY.get(op, 1.0) * np.where(
                own.get("strided", np.zeros(len(moved))) > 0, STRIDED, 1.0
            )
            cold[index[mine]] = START_US + factor * moved / rate
    return cold
