"""On a CPU: elementwise ops, reductions, copies, sorts, optimizers, collectives, host calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.call import (
    Call,
    bound_terms,
    overlapped_us,
)
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import BUCKET, VIEWS

_CALL = coefficients("cpu.call")
_C, _SORT = coefficients("cpu.vector"), coefficients("cpu.sort")


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
    tails = chunks * (dims.get("cols", np.zeros(len(call))) % _C.vector_elements > 0)
    serial_us = 1e-3 * (
        elements * values["element_ns"] * call.by_dtype(values["bf16_ratio"])
        + chunks * values["chunk_ns"]
        + tails * values["tail_ns"]
        + _walks(call) * values["walk_ns"]
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


def _walks(call: Call) -> Floats:
    """Rows at random places of a table, of which more pages are touched than a core remembers."""
    dims = call.dims
    if "hash_size" not in dims or "rows" not in dims:
        return np.zeros(len(call))
    table_pages = np.ceil(dims["hash_size"] * dims["cols"] * call.item_bytes / _CALL.page_bytes)
    pages = np.maximum(np.minimum(dims["rows"], table_pages), 1.0)
    return dims["rows"] * np.maximum(1 - _C.known_pages / pages, 0.0)


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
    is_learnt = (keys <= _SORT.learnt_keys) & (call.in_step == 0)
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
        "faults": call.faults_us(call.written_bytes),
    }


def collective_terms(call: Call) -> Mapping[str, Floats]:
    """Calls, and copies through sockets: Gloo over loopback among processes of one CPU."""
    values, dims = call.values, call.dims
    held = coefficients("cpu.collective").copies * dims["size_bytes"]
    memory_us = call.moving_us(call.written_bytes, held, call.all_cores)
    return {
        "ranks": (dims["ranks"] - 1) * values["rank_us"],
        "memory": values["copies_ratio"] * memory_us,
    }


def host_terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["bucket_us" if call.op == BUCKET else "each_us"]
    first_us = call.first_us() if call.op in VIEWS else 0.0
    return {"host": host_us * call.crowding() + first_us}
