"""What operators take on a CPU, term by term: products, convolutions, elementwise, sorts, host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.family import Call, bound_terms, overlapped_us
from perfmodel.cost.cpu.parameters import Scale
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import BUCKET, VIEWS
from perfmodel.ops.vocabulary.matmul import input_area, output_area

_C, _CONVOLUTION = coefficients("cpu.matmul"), coefficients("cpu.convolution")
_CALL, _SORT = coefficients("cpu.call"), coefficients("cpu.sort")
_VECTOR = coefficients("cpu.vector")


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


def matmul_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, flop = call.values, call.dims, call.work[0]
    is_int8, device = call.item_bytes == 1.0, call.device
    # FBGEMM has no int8 kernels for matrix units: four products a lane (VNNI), else 16-bit sums.
    # Source: Deng et al. 2021 and FBGEMM, recalled; 3.1 to 4.2 on one Xeon with AMX.
    int8_ratio = (device.int8_tflop_per_s or 0.0) / device.fp32_tflop_per_s
    int8_ratio = min(int8_ratio, _C.vector_int8_ratio) or _C.int8_without_units
    ratio = np.where(is_int8, int8_ratio, 1.0)
    ratio = np.where(call.is_bf16, values["bf16_ratio"], ratio)
    # The share of a core's rate that the dims reach, whole tiles of the output being computed.
    reached, halves = np.ones(len(call)), call.by_dtype(values["bf16_half_ratio"])
    for dim in ("m", "n", "k"):
        reached = reached / (1 + halves * values[f"{dim}_half"] / dims[dim])
    for dim, tile in _C.table("tile").items():
        padded = np.ceil(dims[dim] / tile) * tile
        reached = reached * (dims[dim] / padded) ** values[f"{dim}_tile"]
    serial_us = flop / (values["core_gflop_per_s"] * ratio * reached * 1e3)
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
    compute_us = np.minimum(serial_us, parallel_us) if device.sm_count > 1 else serial_us
    rounded_bytes = _C.activation_bytes * dims["b"] * dims["m"] * (dims["k"] + dims["n"])
    moved_bytes = call.moved_bytes + np.where(is_int8, rounded_bytes, 0.0)
    memory_us = call.moving_us(moved_bytes, moved_bytes, cores)
    return {
        "library": library_us,
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(call.work[2]),
    }


def attention_terms(call: Call) -> Mapping[str, Floats]:
    cores, moved = call.all_cores, call.moved_bytes
    rate = call.values["core_gflop_per_s"] * call.by_dtype(call.values["bf16_ratio"])
    memory_us = call.moving_us(moved, moved, cores)
    compute_us = call.work[0] / (rate * cores * 1e3)
    return {"fork": call.fork_us(cores), "compute": overlapped_us(compute_us, memory_us)}


def convolution_terms(call: Call) -> Mapping[str, Floats]:
    """Work on channels padded to whole blocks, and the operands changed to that layout and back."""
    values, dims, written = call.values, call.dims, call.work[2]
    more_in, more_out = (
        np.ceil(dims[name] / _CONVOLUTION.block_channels) * _CONVOLUTION.block_channels / dims[name]
        for name in ("in_channels", "out_channels")
    )
    # Forward kernels read an input of few channels as it is; grouped ones do not pad.
    is_read = (call.direction == "fwd") & (dims["in_channels"] <= _CONVOLUTION.block_channels)
    more_in = np.where(is_read | (dims["groups"] > 1), 1.0, more_in)
    more_out = np.where(dims["groups"] > 1, 1.0, more_out)
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
        "compute": call.work[0] * more_in * more_out / rate,
        "memory": call.moving_us(moved, moved, cores),
        "faults": call.faults_us(written) + call.faults_us(written * more),
    }


def streaming_terms(call: Call) -> Mapping[str, Floats]:
    """Elements and rows on their threads, against the bytes; first touches of a large result."""
    values, dims = call.values, call.dims
    spec = OPS[call.op]
    assert spec.size is not None
    elements = spec.size(dims)
    threads = call.threads(elements)
    speed_up = call.speed_up(1 / threads)
    tensors = dims.get("tensors", np.ones(len(call)))
    chunks = dims.get("rows", np.zeros(len(call))) * tensors
    tails = chunks * (dims.get("cols", np.zeros(len(call))) % _VECTOR.vector_elements > 0)
    walks = np.zeros(len(call))
    if "hash_size" in dims and "rows" in dims:
        # Rows at random places of a table, of which more pages are touched than a core remembers.
        table_bytes = dims["hash_size"] * dims["cols"] * call.item_bytes
        pages = np.minimum(dims["rows"], np.ceil(table_bytes / _CALL.page_bytes))
        walks = dims["rows"] * np.maximum(1 - _VECTOR.known_pages / np.maximum(pages, 1.0), 0.0)
    serial_us = 1e-3 * (
        elements * values["element_ns"] * call.by_dtype(values["bf16_ratio"])
        + chunks * values["chunk_ns"]
        + tails * values["tail_ns"]
        + walks * values["walk_ns"]
    )
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    compute_us = serial_us / speed_up
    memory_us = values["stream_ratio"] * call.moving_us(moved, moved, speed_up)
    return {
        "tensors": (tensors - 1) * values["tensor_us"],
        "fork": call.fork_us(threads),
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(written),
    }


TEMPORARIES = {"optimizer_sgd": (0, 0), "optimizer_adagrad": (1, 2)}
USUAL_TEMPORARIES = (1, 1)
"""Tensors of the parameters' size that are held at once per parameter: loop, `foreach`.

Source: torch/optim/{sgd,adagrad,adam}.py (roots of the states; scaled gradients of Adagrad).
"""


def optimizer_terms(call: Call) -> Mapping[str, Floats]:
    """Later passes of a loop find a tensor where it fits by itself, of `foreach` where all do.

    A fused kernel passes once.
    """
    values, dims, moved = call.values, call.dims, call.moved_bytes
    fused, foreach = call.flag("fused") > 0, call.flag("foreach") > 0

    def by_kind(loop: float, foreach_: float, fused_: float) -> Floats:
        return np.where(fused, fused_, np.where(foreach, foreach_, loop))

    ratio = by_kind(1.0, values["foreach_ratio"], values["fused_ratio"])
    tensor_us = values["tensor_us"] * ratio + call.cold * values["cold_tensor_us"]
    passes = by_kind(values["passes_ratio"], values["passes_ratio"], 1.0)
    threads = call.threads(dims["elements"])
    speed_up = call.speed_up(1 / threads)
    element_ns = values["element_ns"] * by_kind(1.0, 1.0, values["fused_element_ratio"])
    compute_us = 1e-3 * dims["elements"] * dims["tensors"] * element_ns / speed_up
    again = np.where(foreach, moved, moved / dims["tensors"])
    memory_us = call.moving_us(moved, moved, speed_up)
    warm = replace(call, cold=np.zeros(len(call)))
    memory_us = memory_us + (passes - 1) * warm.moving_us(moved, again, speed_up)
    loop, together = TEMPORARIES.get(call.op, USUAL_TEMPORARIES)
    tensor_bytes = dims["elements"] * call.item_bytes
    faults_us = dims["tensors"] * loop * call.faults_us(tensor_bytes)
    listed_us = call.faults_us(together * dims["tensors"] * tensor_bytes)
    return {
        "tensors": dims["tensors"] * tensor_us
        + by_kind(0.0, values["foreach_us"], values["fused_us"])
        + call.cold * by_kind(values["cold_loop_us"], values["cold_foreach_us"], 0.0),
        "fork": dims["tensors"] * passes * call.fork_us(threads),
        "memory": overlapped_us(compute_us, np.maximum(memory_us, 0.0)),
        "faults": np.where(fused, 0.0, np.where(foreach, listed_us, faults_us)),
    }


RADIX = ("unique", "sort_pairs")
"""Ops that sort many keys by their digits, and all of them at once.

Source: `unique_cpu_sorted_template`, aten/src/ATen/native/Unique.cpp; `batched_csr2csc` of FBGEMM.
"""
LINEAR = ("topk", "cumsum", "run_length_encode")
"""Ops that pass over their keys without sorting them."""


def sort_terms(call: Call) -> Mapping[str, Floats]:
    """Of the same few keys sorted over and over, the branches are known."""
    values, dims, moved = call.values, call.dims, call.moved_bytes
    keys, cores = dims["rows"] * dims["cols"], float(call.device.sm_count)
    is_large = keys >= _CALL.grain_elements
    is_radix = is_large & (call.op in RADIX)
    is_learnt = (keys <= _SORT.learnt_keys) & call.alone
    among = keys if call.op in RADIX else dims.get("boundaries", dims["cols"])
    doublings = 0.0 if call.op in LINEAR else np.log2(np.maximum(among, 2.0))
    compare_ns = values["compare_ns"] * np.where(is_learnt, values["learnt_ratio"], 1.0) * doublings
    key_ns = values["key_ns"] + np.where(is_radix, values["radix_ns"], compare_ns)
    threads = np.where(is_large, np.minimum(dims["rows"], cores), 1.0)
    longest = np.ceil(dims["rows"] / threads) / dims["rows"]
    split = np.where(is_radix, 1 / cores, longest)
    return {
        "fork": call.fork_us(np.where(is_radix, cores, threads)),
        "compute": 1e-3 * keys * key_ns / call.speed_up(split),
        "memory": call.moving_us(moved, moved, np.ones(len(call))),
        "faults": call.faults_us(call.work[2]),
    }


def collective_terms(call: Call) -> Mapping[str, Floats]:
    """Calls, and copies through sockets: Gloo over loopback among processes of one CPU."""
    values, dims = call.values, call.dims
    held = coefficients("cpu.collective").copies * dims["size_bytes"]
    memory_us = call.moving_us(call.work[2], held, call.all_cores)
    return {
        "ranks": (dims["ranks"] - 1) * values["rank_us"],
        "memory": values["copies_ratio"] * memory_us,
    }


def host_terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["bucket_us" if call.op == BUCKET else "each_us"]
    first_us = call.first_us() if call.op in VIEWS else 0.0
    return {"host": host_us * call.crowding() + first_us}
