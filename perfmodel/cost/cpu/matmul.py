"""Matrix products, attention and convolutions on a CPU: FLOP at reachable rates, against bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.call import (
    Call,
    Scale,
    bound_terms,
    overlapped_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.matmul import input_area, output_area

_C, _CONVOLUTION = coefficients("cpu.matmul"), coefficients("cpu.convolution")


def bf16_ratio(device: Device, reached: float) -> float:
    """Rate of bf16 over that of fp32: all that vectors multiply more, `reached` of matrix units."""
    ratio = (device.bf16_tflop_per_s or device.fp32_tflop_per_s) / device.fp32_tflop_per_s
    return max(min(ratio, _C.vector_bf16_ratio), reached * ratio)


RATES: Mapping[str, Scale] = {
    "core_gflop_per_s": lambda device, share: (
        share * device.gemm_peak_frac * device.fp32_tflop_per_s * 1e3 / device.sm_count
    ),
    "bf16_ratio": bf16_ratio,
}


def int8_ratio(device: Device) -> float:
    """Rate of int8 over that of fp32 in FBGEMM, which has no kernels for matrix units: four
    products a lane (VNNI), else 16-bit sums of products.

    Source: Deng et al. 2021 and FBGEMM, recalled; 3.1 to 4.2 on one Xeon with AMX.
    """
    if device.int8_tflop_per_s is None:
        return _C.int8_without_units
    return min(device.int8_tflop_per_s / device.fp32_tflop_per_s, _C.vector_int8_ratio)


def matmul_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, flop = call.values, call.dims, call.flop
    is_int8 = call.item_bytes == 1.0
    ratio = np.where(is_int8, int8_ratio(call.device), 1.0)
    ratio = np.where(call.is_bf16, values["bf16_ratio"], ratio)
    serial_us = flop / (values["core_gflop_per_s"] * ratio * _reached(call) * 1e3)
    serial_us = serial_us + np.where(dims["b"] > 1, dims["b"], 0.0) * values["matrix_us"]
    is_small = (dims["b"] > 1) & (dims["m"] * dims["n"] * dims["k"] < _C.small_product)
    serial_us = np.where(is_small, 5e-4 * flop * values["mac_ns"], serial_us)
    of_vector = (dims["b"] == 1) & (np.minimum(dims["m"], dims["n"]) == 1)
    serial_us = np.where(of_vector, 5e-4 * flop * values["vector_mac_ns"] / ratio, serial_us)
    is_simple = call.is_bf16 & (flop <= 2 * _C.smallest_library_product)
    serial_us = np.where(is_simple, 5e-4 * flop * values["bf16_mac_ns"], serial_us)
    prepared_us = values["bf16_us"] + call.cold * values["bf16_cold_us"]
    library_us = np.where(call.is_bf16 & ~is_simple, prepared_us, 0.0)
    cores = call.all_cores
    parallel_us = values["fork_us"] + serial_us / cores
    compute_us = np.minimum(serial_us, parallel_us) if call.device.sm_count > 1 else serial_us
    rounded_bytes = _C.activation_bytes * dims["b"] * dims["m"] * (dims["k"] + dims["n"])
    moved_bytes = call.moved_bytes + np.where(is_int8, rounded_bytes, 0.0)
    memory_us = call.moving_us(moved_bytes, moved_bytes, cores)
    return {
        "library": library_us,
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(call.written_bytes),
    }


def _reached(call: Call) -> Floats:
    """Share of a core's rate that the dims reach, whole tiles of the output being computed."""
    values, dims = call.values, call.dims
    reached = np.ones(len(call))
    halves = call.by_dtype(values["bf16_half_ratio"])
    for dim in ("m", "n", "k"):
        reached = reached / (1 + halves * values[f"{dim}_half"] / dims[dim])
    for dim, tile in _C.table("tile").items():
        padded = np.ceil(dims[dim] / tile) * tile
        reached = reached * (dims[dim] / padded) ** values[f"{dim}_tile"]
    return reached


def attention_terms(call: Call) -> Mapping[str, Floats]:
    cores, moved = call.all_cores, call.moved_bytes
    rate = call.values["core_gflop_per_s"] * call.by_dtype(call.values["bf16_ratio"])
    memory_us = call.moving_us(moved, moved, cores)
    compute_us = call.flop / (rate * cores * 1e3)
    return {"fork": call.fork_us(cores), "compute": overlapped_us(compute_us, memory_us)}


def convolution_terms(call: Call) -> Mapping[str, Floats]:
    """Work on channels padded to whole blocks, and the operands changed to that layout and back."""
    values, dims, written = call.values, call.dims, call.written_bytes
    more_in, more_out = _padding(dims, call.direction)
    reached = 1 / (1 + values["in_half"] * dims["groups"] / dims["in_channels"])
    reached = reached / (1 + values["out_half"] * dims["groups"] / dims["out_channels"])
    cores, ratio = call.all_cores, call.by_dtype(values["bf16_ratio"])
    rate = values["core_gflop_per_s"] * ratio * reached * cores * 1e3
    blocked = more_in * dims["in_channels"] * input_area(dims)
    blocked = blocked + more_out * dims["out_channels"] * output_area(dims)
    moved = call.moved_bytes + values["blocked_ratio"] * call.item_bytes * dims["batch"] * blocked
    more = more_out if call.direction == "fwd" else more_in
    return {
        "fork": call.fork_us(cores),
        "compute": call.flop * more_in * more_out / rate,
        "memory": call.moving_us(moved, moved, cores),
        "faults": call.faults_us(written) + call.faults_us(written * more),
    }


def _padding(dims: Dims, direction: str) -> tuple[Floats, Floats]:
    """Channels in blocks over channels, of the input and the output.

    Forward kernels read an input of few channels as it is; grouped ones do not pad.
    """
    more_in, more_out = (
        np.ceil(dims[name] / _CONVOLUTION.block_channels) * _CONVOLUTION.block_channels / dims[name]
        for name in ("in_channels", "out_channels")
    )
    if direction == "fwd":
        more_in = np.where(dims["in_channels"] <= _CONVOLUTION.block_channels, 1.0, more_in)
    grouped = dims["groups"] > 1
    return np.where(grouped, 1.0, more_in), np.where(grouped, 1.0, more_out)
