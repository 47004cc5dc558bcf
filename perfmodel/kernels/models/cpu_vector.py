"""Memory-bound ops on a CPU: elementwise, reductions, norms, copies, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, PAGE_BYTES, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

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
    both = slower(compute_us, memory_us)
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
    table_pages = np.ceil(dims["hash_size"] * dims["cols"] * call.item_bytes / PAGE_BYTES)
    pages = np.maximum(np.minimum(dims["rows"], table_pages), 1.0)
    return dims["rows"] * np.maximum(1 - KNOWN_PAGES / pages, 0.0)


KERNELS.register("cpu/vector/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))
KERNELS.register("cpu/transfer/heuristic")(CpuFamily("transfer", STREAMING, streaming_terms))
