"""Matrix products on a CPU: flops at a rate that small dims cannot reach, against their bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

VECTOR_ELEMENTS = 16.0
"""fp32 elements of the widest vectors; columns beyond a multiple of it cost extra."""
SMALL_PRODUCT = 400.0
"""Multiply-adds of one matrix of a batch below which PyTorch loops over elements itself.

Source: `bmm_out_or_baddbmm_`, aten/src/ATen/native/LinearAlgebra.cpp.
"""


def _core_gflop_per_s(device: Device) -> float:
    return device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("core_gflop_per_s", _core_gflop_per_s, 1.0, 2000.0, "fp32, one core, large dims"),
    Parameter("bf16_ratio", 1.0, 0.01, 16.0, "rate of bf16 over that of fp32"),
    Parameter("m_half", 4.0, 0.01, 500.0, "m at which half the rate is reached", per_op=True),
    Parameter("n_half", 8.0, 0.01, 500.0, "n at which half the rate is reached", per_op=True),
    Parameter("k_half", 16.0, 0.01, 500.0, "k at which half the rate is reached", per_op=True),
    Parameter("n_tail", 8.0, 0.01, 100.0, "columns that an incomplete vector costs", per_op=True),
    Parameter("mac_ns", 1.5, 0.01, 50.0, "a multiply-add of a small product in a batch"),
    Parameter("matrix_us", 0.2, 0.001, 20.0, "each matrix of a batch", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    reached = np.ones(len(call))
    for dim in ("m", "n", "k"):
        reached = reached / (1 + values[f"{dim}_half"] / dims[dim])
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], 1.0)
    reached = reached / (1 + (dims["n"] % VECTOR_ELEMENTS > 0) * values["n_tail"] / dims["n"])
    flop = spec.flop(dims)
    serial_us = flop / (values["core_gflop_per_s"] * ratio * reached * 1e3)
    serial_us = serial_us + np.where(dims["b"] > 1, dims["b"], 0.0) * values["matrix_us"]
    is_small = (dims["b"] > 1) & (dims["m"] * dims["n"] * dims["k"] < SMALL_PRODUCT)
    serial_us = np.where(is_small, 5e-4 * flop * values["mac_ns"], serial_us)
    cores = np.full(len(call), float(call.device.sm_count))
    parallel_us = values["fork_us"] + serial_us / cores
    compute_us = np.minimum(serial_us, parallel_us) if call.device.sm_count > 1 else serial_us
    moved_bytes = spec.read_bytes(dims, call.item_bytes) + spec.written_bytes(dims, call.item_bytes)
    memory_us = call.moving_us(moved_bytes, moved_bytes, cores)
    both = slower(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(spec.written_bytes(dims, call.item_bytes)),
    }


MODEL = CpuFamily("matmul", PARAMETERS, _terms)
KERNELS.register("cpu/matmul/heuristic")(MODEL)
