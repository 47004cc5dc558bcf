"""Matrix products, attention and convolutions on a CPU: FLOP at reachable rates, against bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import MEMORY_PARAMETERS, Call, Parameter, overlapped_us
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS, Dims
from perfmodel.ops.vocabulary.matmul import input_area, output_area

TILE = {"m": 8.0, "n": 16.0}
"""Rows and columns of the output that a kernel computes at once: a vector of 512 bits of fp32."""
SMALL_PRODUCT = 400.0
"""Multiply-adds of one matrix of a batch below which PyTorch loops over elements itself.

Source: `bmm_out_or_baddbmm_`, aten/src/ATen/native/LinearAlgebra.cpp.
"""


def _core_gflop_per_s(device: Device) -> float:
    return device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


def int8_ratio(device: Device) -> float:
    """Rate of int8 over that of fp32: its own units (VNNI), else 16-bit sums of products.

    Source: Deng et al. 2021 and FBGEMM: VNNI four times, without it about twice; recalled.
    """
    if device.int8_tflop_per_s is None:
        return INT8_WITHOUT_UNITS
    return device.int8_tflop_per_s / device.fp32_tflop_per_s


INT8_WITHOUT_UNITS = 2.0
FP32_BYTES = 4.0
"""Activations of an int8 product: rounded on the way in, scaled back on the way out."""
SMALLEST_LIBRARY_PRODUCT = 4096.0
"""Multiply-adds up to which a product in bf16 is a plain loop, not oneDNN's.

Source: `mkldnn_gemm_min_size`, aten/src/ATen/native/mkldnn/Matmul.cpp.
"""
MATMUL_PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("core_gflop_per_s", _core_gflop_per_s, 1.0, 2000.0, "fp32, one core, large dims"),
    Parameter("bf16_ratio", 1.0, 0.01, 16.0, "rate of bf16 over that of fp32"),
    Parameter("bf16_us", 5.0, 0.1, 100.0, "what oneDNN prepares for a product", per_op=True),
    Parameter("bf16_cold_us", 10.0, 0.1, 200.0, "more of it where its code is in no cache"),
    Parameter("bf16_half_ratio", 1.0, 0.05, 20.0, "of the halves of fp32 below, for bf16"),
    Parameter("bf16_mac_ns", 3.0, 0.05, 50.0, "a multiply-add of bf16 in a plain loop"),
    Parameter("m_half", 4.0, 0.01, 500.0, "m at which half the rate is reached", per_op=True),
    Parameter("n_half", 8.0, 0.01, 500.0, "n at which half the rate is reached", per_op=True),
    Parameter("k_half", 16.0, 0.01, 500.0, "k at which half the rate is reached", per_op=True),
    Parameter("m_tile", 0.5, 0.01, 1.5, "of an incomplete tile's rows, lost", per_op=True),
    Parameter("n_tile", 0.5, 0.01, 1.5, "of an incomplete tile's columns, lost", per_op=True),
    Parameter("vector_mac_ns", 0.05, 1e-3, 5.0, "a multiply-add with a vector", per_op=True),
    Parameter("mac_ns", 1.5, 0.01, 50.0, "a multiply-add of a small product in a batch"),
    Parameter("matrix_us", 0.2, 0.001, 20.0, "each matrix of a batch", per_op=True),
)


def _matmul_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    is_int8 = call.item_bytes == 1.0
    ratio = np.where(is_int8, int8_ratio(call.device), 1.0)
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], ratio)
    flop = spec.flop(dims)
    serial_us = flop / (values["core_gflop_per_s"] * ratio * _reached(call) * 1e3)
    serial_us = serial_us + np.where(dims["b"] > 1, dims["b"], 0.0) * values["matrix_us"]
    is_small = (dims["b"] > 1) & (dims["m"] * dims["n"] * dims["k"] < SMALL_PRODUCT)
    serial_us = np.where(is_small, 5e-4 * flop * values["mac_ns"], serial_us)
    of_vector = (dims["b"] == 1) & (np.minimum(dims["m"], dims["n"]) == 1)
    serial_us = np.where(of_vector, 5e-4 * flop * values["vector_mac_ns"] / ratio, serial_us)
    is_simple = (call.is_bf16 > 0) & (flop <= 2 * SMALLEST_LIBRARY_PRODUCT)
    serial_us = np.where(is_simple, 5e-4 * flop * values["bf16_mac_ns"], serial_us)
    prepared_us = values["bf16_us"] + call.cold * values["bf16_cold_us"]
    library_us = np.where((call.is_bf16 > 0) & ~is_simple, prepared_us, 0.0)
    cores = np.full(len(call), float(call.device.sm_count))
    parallel_us = values["fork_us"] + serial_us / cores
    compute_us = np.minimum(serial_us, parallel_us) if call.device.sm_count > 1 else serial_us
    moved_bytes = spec.read_bytes(dims, call.item_bytes) + spec.written_bytes(dims, call.item_bytes)
    rounded_bytes = FP32_BYTES * dims["b"] * dims["m"] * (dims["k"] + dims["n"])
    moved_bytes = moved_bytes + np.where(is_int8, rounded_bytes, 0.0)
    memory_us = call.moving_us(moved_bytes, moved_bytes, cores)
    both = overlapped_us(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "library": library_us,
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(spec.written_bytes(dims, call.item_bytes)),
    }


def _reached(call: Call) -> Floats:
    """Share of a core's rate that the dims reach, whole tiles of the output being computed."""
    values, dims = call.values, call.dims
    reached = np.ones(len(call))
    halves = np.where(call.is_bf16 > 0, values["bf16_half_ratio"], 1.0)
    for dim in ("m", "n", "k"):
        reached = reached / (1 + halves * values[f"{dim}_half"] / dims[dim])
    for dim, tile in TILE.items():
        padded = np.ceil(dims[dim] / tile) * tile
        reached = reached * (dims[dim] / padded) ** values[f"{dim}_tile"]
    return reached


MODEL = CpuFamily("matmul", MATMUL_PARAMETERS, _matmul_terms)
KERNELS.register("cpu/matmul/heuristic")(MODEL)


def _attention_core_gflop_per_s(device: Device) -> float:
    return 0.5 * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


ATTENTION_PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter(
        "core_gflop_per_s", _attention_core_gflop_per_s, 0.5, 2000.0, "one core", per_op=True
    ),
)


def _attention_terms(call: Call) -> Mapping[str, Floats]:
    spec = OPS[call.op].of(call.direction)
    cores = np.full(len(call), float(call.device.sm_count))
    written = spec.written_bytes(call.dims, call.item_bytes)
    moved = spec.read_bytes(call.dims, call.item_bytes) + written
    compute_us = spec.flop(call.dims) / (call.values["core_gflop_per_s"] * cores * 1e3)
    memory_us = call.moving_us(moved, moved, cores)
    return {"fork": call.fork_us(cores), "compute": overlapped_us(compute_us, memory_us)}


KERNELS.register("cpu/attention/heuristic")(
    CpuFamily("attention", ATTENTION_PARAMETERS, _attention_terms)
)


def _convolution_core_gflop_per_s(device: Device) -> float:
    return 0.7 * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count


CONVOLUTION_PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter(
        "core_gflop_per_s",
        _convolution_core_gflop_per_s,
        0.5,
        2000.0,
        "fp32, one core",
        per_op=True,
    ),
    Parameter("bf16_ratio", 1.0, 0.01, 16.0, "rate of bf16 over that of fp32", per_op=True),
    Parameter("in_half", 8.0, 0.01, 500.0, "input channels at half the rate", per_op=True),
    Parameter("out_half", 8.0, 0.01, 500.0, "output channels at half the rate", per_op=True),
    Parameter("blocked_ratio", 2.0, 0.1, 30.0, "passes over the blocked operands", per_op=True),
)
BLOCK_CHANNELS = 16.0
"""Channels of a block of oneDNN's layouts for vectors of 512 bits (`nChw16c`).

Source: oneDNN developer guide, "Understanding Memory Formats".
"""


def _convolution_terms(call: Call) -> Mapping[str, Floats]:
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


KERNELS.register("cpu/convolution/heuristic")(
    CpuFamily("convolution", CONVOLUTION_PARAMETERS, _convolution_terms)
)
