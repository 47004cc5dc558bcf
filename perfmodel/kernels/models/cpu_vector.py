"""Memory-bound ops on a CPU: elementwise, reductions, norms, copies, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Dims, Floats

STREAMING = (
    *MEMORY_PARAMETERS,
    Parameter("element_ns", 0.1, 1e-4, 500.0, "each element, one thread", per_op=True),
    Parameter("chunk_ns", 1.0, 1e-3, 1000.0, "each row or tensor, one thread", per_op=True),
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
    elements = _elements(dims)
    threads = call.threads(elements)
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    ratio = np.where(call.is_bf16 > 0, values["bf16_ratio"], 1.0)
    chunks = dims.get("rows", np.zeros(len(call))) * dims.get("tensors", np.ones(len(call)))
    serial_us = 1e-3 * (elements * values["element_ns"] * ratio + chunks * values["chunk_ns"])
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    compute_us = serial_us / speed_up
    memory_us = values["stream_ratio"] * call.moving_us(moved, moved, speed_up)
    both = slower(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "fork": call.fork_us(threads),
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(written),
    }


def _elements(dims: Dims) -> Floats:
    if "elements" in dims:
        return dims["elements"] * dims.get("tensors", 1.0)
    return dims["rows"] * dims["cols"] * dims.get("tensors", 1.0)


KERNELS.register("cpu/vector/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))
KERNELS.register("cpu/transfer/heuristic")(CpuFamily("transfer", STREAMING, streaming_terms))
