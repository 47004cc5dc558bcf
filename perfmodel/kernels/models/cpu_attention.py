"""Attention on a CPU: its products at a rate below that of a plain one, against its bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats


def _core_gflop_per_s(device: Device) -> float:
    return 0.5 * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("core_gflop_per_s", _core_gflop_per_s, 0.5, 2000.0, "one core", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    spec = OPS[call.op].of(call.direction)
    cores = np.full(len(call), float(call.device.sm_count))
    written = spec.written_bytes(call.dims, call.item_bytes)
    moved = spec.read_bytes(call.dims, call.item_bytes) + written
    compute_us = spec.flop(call.dims) / (call.values["core_gflop_per_s"] * cores * 1e3)
    memory_us = call.moving_us(moved, moved, cores)
    return {"fork": call.fork_us(cores), "compute": slower(compute_us, memory_us)}


KERNELS.register("cpu/attention/heuristic")(CpuFamily("attention", PARAMETERS, _terms))
