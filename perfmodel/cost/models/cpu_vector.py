"""Memory-bound work on a CPU: elementwise, reductions, copies, sorts, optimizers, host calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import (
    MEMORY_PARAMETERS,
    Call,
    Parameter,
    overlapped_us,
)
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import BUCKET, VIEWS

_CALL = coefficients("cpu.call")
VECTOR_ELEMENTS = 16.0
"""fp32 elements of the widest vectors."""
KNOWN_PAGES = 4096.0
"""Pages whose address a core remembers (second-level TLB of Zen 4 and 5, to a power of two).

Source: Software Optimization Guide for the AMD Zen4 Microarchitecture, 2.5 (3072 entries).
"""
STREAMING = (
    *MEMORY_PARAMETERS,
    Parameter("element_ns", 0.1, 1e-4, 500.0, "each element, one thread", per_op=True),
    Parameter("chunk_ns", 1.0, 1e-3, 1000.0, "each row or tensor, one thread", per_op=True),
    Parameter("tail_ns", 1.0, 1e-3, 200.0, "each row that ends within a vector", per_op=True),
    Parameter("tensor_us", 0.05, 1e-3, 20.0, "each further tensor of a list", per_op=True),
    Parameter("walk_ns", 20.0, 0.1, 500.0, "a row of a table whose page is not known", per_op=True),
    Parameter(
        "bf16_ratio", 1.0, 0.05, 20.0, "time of a bf16 element over that of fp32", per_op=True
    ),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
    Parameter(
        "stream_ratio", 1.0, 0.05, 20.0, "time of its bytes over plain streaming", per_op=True
    ),
)


def streaming_terms(call: Call) -> Mapping[str, Floats]:
    """Elements and rows on their threads, against the bytes; first touches of a large result."""
    values, dims = call.values, call.dims
    spec = OPS[call.op]
    assert spec.size is not None
    elements = spec.size(dims)
    threads = call.threads(elements)
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], 1.0)
    tensors = dims.get("tensors", np.ones(len(call)))
    chunks = dims.get("rows", np.zeros(len(call))) * tensors
    tails = chunks * (dims.get("cols", np.zeros(len(call))) % VECTOR_ELEMENTS > 0)
    serial_us = 1e-3 * (
        elements * values["element_ns"] * ratio
        + chunks * values["chunk_ns"]
        + tails * values["tail_ns"]
        + _walks(call) * values["walk_ns"]
    )
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    compute_us = serial_us / speed_up
    memory_us = values["stream_ratio"] * call.moving_us(moved, moved, speed_up)
    both = overlapped_us(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "tensors": (tensors - 1) * values["tensor_us"],
        "fork": call.fork_us(threads),
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(written),
    }


def _walks(call: Call) -> Floats:
    """Rows at random places of a table, of which more pages are touched than a core remembers."""
    dims = call.dims
    if "hash_size" not in dims or "rows" not in dims:
        return np.zeros(len(call))
    table_pages = np.ceil(dims["hash_size"] * dims["cols"] * call.item_bytes / _CALL.page_bytes)
    pages = np.maximum(np.minimum(dims["rows"], table_pages), 1.0)
    return dims["rows"] * np.maximum(1 - KNOWN_PAGES / pages, 0.0)


KERNELS.register("cpu/vector/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))
KERNELS.register("cpu/transfer/heuristic")(CpuFamily("transfer", STREAMING, streaming_terms))


TEMPORARIES = {"optimizer_sgd": (0, 0), "optimizer_adagrad": (1, 2)}
USUAL_TEMPORARIES = (1, 1)
"""Tensors of the parameters' size that are held at once per parameter: loop, `foreach`.

Source: torch/optim/{sgd,adagrad,adam}.py (roots of the states; scaled gradients of Adagrad).
"""
OPTIMIZER_PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("foreach_us", 5.0, 0.01, 100.0, "a step by foreach, beyond a loop's", per_op=True),
    Parameter("fused_us", 5.0, 0.01, 100.0, "a fused step, beyond a loop's", per_op=True),
    Parameter("tensor_us", 5.0, 0.1, 300.0, "each tensor, in a loop in Python", per_op=True),
    Parameter("foreach_ratio", 1.0, 0.05, 20.0, "of that, by foreach", per_op=True),
    Parameter("fused_ratio", 0.3, 0.01, 20.0, "of that, fused", per_op=True),
    Parameter("cold_loop_us", 5.0, 0.01, 200.0, "cold code of a loop, beyond fused", per_op=True),
    Parameter("cold_foreach_us", 5.0, 0.01, 200.0, "cold code of foreach beyond it", per_op=True),
    Parameter("cold_tensor_us", 1.0, 0.01, 50.0, "each tensor that is in no cache", per_op=True),
    Parameter("element_ns", 0.3, 1e-3, 50.0, "each element, one thread", per_op=True),
    Parameter("fused_element_ratio", 0.5, 0.02, 5.0, "of that, fused", per_op=True),
    Parameter(
        "passes_ratio", 2.0, 1.0, 20.0, "bytes moved over those needed, not fused", per_op=True
    ),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _optimizer_terms(call: Call) -> Mapping[str, Floats]:
    """Later passes of a loop find a tensor where it fits by itself, of `foreach` where all do.

    A fused kernel passes once.
    """
    values, dims, spec = call.values, call.dims, OPS[call.op]
    fused, foreach = call.flag("fused") > 0, call.flag("foreach") > 0

    def by_kind(loop: float, foreach_: float, fused_: float) -> Floats:
        return np.where(fused, fused_, np.where(foreach, foreach_, loop))

    ratio = by_kind(1.0, values["foreach_ratio"], values["fused_ratio"])
    tensor_us = values["tensor_us"] * ratio + call.cold * values["cold_tensor_us"]
    passes = by_kind(values["passes_ratio"], values["passes_ratio"], 1.0)
    threads = call.threads(dims["elements"])
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    element_ns = values["element_ns"] * by_kind(1.0, 1.0, values["fused_element_ratio"])
    compute_us = 1e-3 * dims["elements"] * dims["tensors"] * element_ns / speed_up

    moved = spec.read_bytes(dims, call.item_bytes) + spec.written_bytes(dims, call.item_bytes)
    again = np.where(foreach, moved, moved / dims["tensors"])
    memory_us = call.moving_us(moved, moved, speed_up)
    memory_us = memory_us + (passes - 1) * _warm_us(call, moved, again, speed_up)
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


def _warm_us(call: Call, moved: Floats, held: Floats, threads: Floats) -> Floats:
    """Moving what the same call moved before."""
    return replace(call, cold=np.zeros(len(call))).moving_us(moved, held, threads)


KERNELS.register("cpu/optimizer/heuristic")(
    CpuFamily("optimizer", OPTIMIZER_PARAMETERS, _optimizer_terms)
)


RADIX = ("unique", "sort_pairs")
"""Ops that sort many keys by their digits, and all of them at once.

Source: `unique_cpu_sorted_template`, aten/src/ATen/native/Unique.cpp; `batched_csr2csc` of FBGEMM.
"""
LINEAR = ("topk", "cumsum", "run_length_encode")
"""Ops that pass over their keys without sorting them."""
LEARNT_KEYS = 8192.0
"""Keys, sorted over and over, whose comparisons a branch predictor has learnt (measured: of 5,000
keys it has, of 11,000 it has not)."""
SORT_PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("key_ns", 1.0, 0.01, 500.0, "each key", per_op=True),
    Parameter("compare_ns", 3.0, 1e-4, 100.0, "each key and doubling of keys", per_op=True),
    Parameter("learnt_ratio", 0.2, 0.01, 1.0, "of that, where every branch is foreseen"),
    Parameter("radix_ns", 10.0, 0.1, 200.0, "each key, all passes of a radix sort", per_op=True),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _sort_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    keys = dims["rows"] * dims["cols"]
    cores = float(call.device.sm_count)
    is_radix = np.full(len(call), call.op in RADIX) & (keys >= _CALL.grain_elements)
    foreseen = np.where(_is_learnt(call, keys), values["learnt_ratio"], 1.0)
    compared_ns = values["compare_ns"] * foreseen * _doublings(call, keys)
    key_ns = values["key_ns"] + np.where(is_radix, values["radix_ns"], compared_ns)
    threads = np.where(keys >= _CALL.grain_elements, np.minimum(dims["rows"], cores), 1.0)
    longest = np.ceil(dims["rows"] / threads) / dims["rows"]
    share = values["parallel_frac"]
    split = np.where(is_radix, 1 - share + share / cores, 1 - share + share * longest)
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    return {
        "fork": call.fork_us(np.where(is_radix, cores, threads)),
        "compute": 1e-3 * keys * key_ns * split,
        "memory": call.moving_us(moved, moved, np.ones(len(call))),
        "faults": call.faults_us(written),
    }


def _doublings(call: Call, keys: Floats) -> Floats:
    """Comparisons per key."""
    if call.op in LINEAR:
        return np.zeros(len(call))
    among = keys if call.op in RADIX else call.dims.get("boundaries", call.dims["cols"])
    found: Floats = np.log2(np.maximum(among, 2.0))
    return found


def _is_learnt(call: Call, keys: Floats) -> NDArray[np.bool_]:
    """Whether the branches of a sort are known: of the same few keys sorted over and over."""
    learnt: NDArray[np.bool_] = (keys <= LEARNT_KEYS) & (call.in_step == 0)
    return learnt


KERNELS.register("cpu/sort/heuristic")(CpuFamily("sort", SORT_PARAMETERS, _sort_terms))


BUCKET_US = 29.0
"""What `DistributedDataParallel` adds to a step per module of one bucket, beside the ops that move
gradients: hooks before and after the forward pass, the work of an all-reduce and its end.

Source: `benchmarks/ddp.py`, AMD EPYC, PyTorch 2.13, 2026-11-20: one rank's CPU time with DDP less
that without, modules of 1 to 16 narrow layers: 9 us, 25 us a module, and 2.6 us a parameter, which
the ops of its gradient hold; of two modules, 29 us each.
"""
HOST_PARAMETERS = (
    Parameter("each_us", 1.0, 1e-3, 5000.0, "one of them", per_op=True),
    Parameter("bucket_us", BUCKET_US, 1e-3, 5000.0, "a bucket of gradients"),
    Parameter("first_us", 1.0, 0.01, 200.0, "the first view of its kind in a step", per_op=True),
)


def _host_terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["bucket_us" if call.op == BUCKET else "each_us"]
    first_us = call.first_us() if call.op in VIEWS else 0.0
    return {"host": host_us * call.crowding() + first_us}


KERNELS.register("cpu/host/heuristic")(
    CpuFamily("host", HOST_PARAMETERS, _host_terms, called=False)
)


for _family in ("channel", "jagged", "pooling"):
    KERNELS.register(f"cpu/{_family}/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))
