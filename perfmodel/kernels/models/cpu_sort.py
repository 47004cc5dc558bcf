"""Sorts, unique and prefix sums on a CPU: comparisons per key, on one thread, against the bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("key_ns", 5.0, 0.01, 500.0, "each key", per_op=True),
    Parameter("compare_ns", 1.0, 1e-4, 100.0, "each key and doubling of keys", per_op=True),
    Parameter("parallel_frac", 0.1, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    keys = dims["rows"] * dims["cols"]
    threads = call.threads(keys)
    share = values["parallel_frac"]
    serial_us = (
        1e-3
        * keys
        * (values["key_ns"] + values["compare_ns"] * np.log2(np.maximum(dims["cols"], 2.0)))
    )
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    return {
        "fork": call.fork_us(threads),
        "compute": serial_us * (1 - share + share / threads),
        "memory": call.moving_us(moved, moved, np.ones(len(call))),
        "faults": call.faults_us(written),
    }


KERNELS.register("cpu/sort/heuristic")(CpuFamily("sort", PARAMETERS, _terms))
