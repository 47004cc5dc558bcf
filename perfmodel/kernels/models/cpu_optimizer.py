"""Dense optimizers on a CPU: a call per tensor, or one for all, and the bytes of the states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("tensor_us", 5.0, 0.1, 300.0, "each tensor, in a loop in Python", per_op=True),
    Parameter("foreach_ratio", 1.0, 0.05, 20.0, "of that, by foreach", per_op=True),
    Parameter("fused_ratio", 0.3, 0.01, 20.0, "of that, fused", per_op=True),
    Parameter("element_ns", 0.3, 1e-3, 50.0, "each element, one thread", per_op=True),
    Parameter(
        "passes_ratio", 2.0, 0.2, 20.0, "bytes moved over those needed, not fused", per_op=True
    ),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    fused, foreach = call.flag("fused"), call.flag("foreach")
    per_tensor = np.where(fused > 0, values["fused_ratio"], 1.0)
    per_tensor = np.where(foreach > 0, values["foreach_ratio"], per_tensor)
    passes = np.where(fused > 0, 1.0, values["passes_ratio"])
    elements = dims["elements"] * dims["tensors"]
    threads = call.threads(dims["elements"])
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    moved = spec.read_bytes(dims, call.item_bytes) + spec.written_bytes(dims, call.item_bytes)
    compute_us = 1e-3 * elements * values["element_ns"] * passes / speed_up
    memory_us = passes * call.moving_us(moved, moved, speed_up)
    return {
        "tensors": dims["tensors"] * values["tensor_us"] * per_tensor,
        "fork": dims["tensors"] * call.fork_us(threads),
        "memory": slower(compute_us, memory_us),
    }


KERNELS.register("cpu/optimizer/heuristic")(CpuFamily("optimizer", PARAMETERS, _terms))
