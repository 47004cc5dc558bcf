"""Convolutions on a CPU: flops at a rate that few channels cannot reach, against the bytes."""

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
    return 0.7 * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("core_gflop_per_s", _core_gflop_per_s, 0.5, 2000.0, "fp32, one core", per_op=True),
    Parameter("bf16_ratio", 1.0, 0.01, 16.0, "rate of bf16 over that of fp32", per_op=True),
    Parameter("in_half", 8.0, 0.01, 500.0, "input channels at half the rate", per_op=True),
    Parameter("out_half", 8.0, 0.01, 500.0, "output channels at half the rate", per_op=True),
    Parameter("bytes_ratio", 2.0, 0.2, 30.0, "bytes moved over those needed", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims = call.values, call.dims
    spec = OPS[call.op].of(call.direction)
    reached = 1 / (1 + values["in_half"] * dims["groups"] / dims["in_channels"])
    reached = reached / (1 + values["out_half"] * dims["groups"] / dims["out_channels"])
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], 1.0)
    cores = np.full(len(call), float(call.device.sm_count))
    rate = values["core_gflop_per_s"] * ratio * reached * cores * 1e3
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    compute_us = spec.flop(dims) / rate
    memory_us = values["bytes_ratio"] * call.moving_us(moved, moved, cores)
    both = slower(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "fork": call.fork_us(cores),
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(written),
    }


KERNELS.register("cpu/convolution/heuristic")(CpuFamily("convolution", PARAMETERS, _terms))
