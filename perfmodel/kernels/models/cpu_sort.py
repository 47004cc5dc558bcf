"""Sorts, unique and prefix sums on a CPU: comparisons per key, on one thread, against the bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.cpu.call import GRAIN_ELEMENTS, MEMORY_PARAMETERS, Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

RADIX = ("unique", "sort_pairs")
"""Ops that sort many keys by their digits, and all of them at once.

Source: `unique_cpu_sorted_template`, aten/src/ATen/native/Unique.cpp; `batched_csr2csc` of FBGEMM.
"""
LINEAR = ("topk", "cumsum", "run_length_encode")
"""Ops that pass over their keys without sorting them."""
LEARNT_KEYS = 8192.0
"""Keys, sorted over and over, whose comparisons a branch predictor has learnt (measured: of 5,000
keys it has, of 11,000 it has not)."""
PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("key_ns", 1.0, 0.01, 500.0, "each key", per_op=True),
    Parameter("compare_ns", 3.0, 1e-4, 100.0, "each key and doubling of keys", per_op=True),
    Parameter("learnt_ratio", 0.2, 0.01, 1.0, "of that, where every branch is foreseen"),
    Parameter("radix_ns", 10.0, 0.1, 200.0, "each key, all passes of a radix sort", per_op=True),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims, spec = call.values, call.dims, OPS[call.op]
    keys = dims["rows"] * dims["cols"]
    cores = float(call.device.sm_count)
    is_radix = np.full(len(call), call.op in RADIX) & (keys >= GRAIN_ELEMENTS)
    foreseen = np.where(_is_learnt(call, keys), values["learnt_ratio"], 1.0)
    compared_ns = values["compare_ns"] * foreseen * _doublings(call, keys)
    key_ns = values["key_ns"] + np.where(is_radix, values["radix_ns"], compared_ns)
    threads = np.where(keys >= GRAIN_ELEMENTS, np.minimum(dims["rows"], cores), 1.0)
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


KERNELS.register("cpu/sort/heuristic")(CpuFamily("sort", PARAMETERS, _terms))
