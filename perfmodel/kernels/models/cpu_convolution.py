"""Convolutions on a CPU: flops at a rate that few channels cannot reach, against the bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.vocabulary.convolution import input_area, output_area


def _core_gflop_per_s(device: Device) -> float:
    return 0.7 * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("core_gflop_per_s", _core_gflop_per_s, 0.5, 2000.0, "fp32, one core", per_op=True),
    Parameter("bf16_ratio", 1.0, 0.01, 16.0, "rate of bf16 over that of fp32", per_op=True),
    Parameter("in_half", 8.0, 0.01, 500.0, "input channels at half the rate", per_op=True),
    Parameter("out_half", 8.0, 0.01, 500.0, "output channels at half the rate", per_op=True),
    Parameter("blocked_ratio", 2.0, 0.1, 30.0, "passes over the blocked operands", per_op=True),
)
BLOCK_CHANNELS = 16.0
"""Channels of a block of oneDNN's layouts for vectors of 512 bits (`nChw16c`).

Source: oneDNN developer guide, "Understanding Memory Formats".
"""


def _terms(call: Call) -> Mapping[str, Floats]:
    """Work on channels padded to whole blocks, and the operands changed to that layout and back."""
    values, dims = call.values, call.dims
    spec = OPS[call.op].of(call.direction)
    more_in, more_out = _padding(dims, call.direction)
    reached = 1 / (1 + values["in_half"] * dims["groups"] / dims["in_channels"])
    reached = reached / (1 + values["out_half"] * dims["groups"] / dims["out_channels"])
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], 1.0)
    cores = np.full(len(call), float(call.device.sm_count))
    rate = values["core_gflop_per_s"] * ratio * reached * cores * 1e3
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    item, batch = call.item_bytes, dims["batch"]
    blocked = item * batch * more_in * dims["in_channels"] * input_area(dims)
    blocked = blocked + item * batch * more_out * dims["out_channels"] * output_area(dims)
    moved = moved + values["blocked_ratio"] * blocked
    compute_us = spec.flop(dims) * more_in * more_out / rate
    memory_us = call.moving_us(moved, moved, cores)
    more = more_out if call.direction == "fwd" else more_in
    return {
        "fork": call.fork_us(cores),
        "compute": compute_us,
        "memory": memory_us,
        "faults": call.faults_us(written) + call.faults_us(written * more),
    }


def _padding(dims: Dims, direction: str) -> tuple[Floats, Floats]:
    """Channels in blocks over channels, of the input and the output.

    Forward kernels read an input of few channels as it is; grouped ones do not pad.
    """
    more_in, more_out = (
        np.ceil(dims[name] / BLOCK_CHANNELS) * BLOCK_CHANNELS / dims[name]
        for name in ("in_channels", "out_channels")
    )
    if direction == "fwd":
        more_in = np.where(dims["in_channels"] <= BLOCK_CHANNELS, 1.0, more_in)
    grouped = dims["groups"] > 1
    return np.where(grouped, 1.0, more_in), np.where(grouped, 1.0, more_out)


KERNELS.register("cpu/convolution/heuristic")(CpuFamily("convolution", PARAMETERS, _terms))
