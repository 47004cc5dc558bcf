"""Embedding lookups on a CPU: rows gathered from caches and memory, pooled, and updated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.cpu.reuse import distinct_rows
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

INDEX_BYTES = 8.0
PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("bag_ns", 5.0, 0.01, 500.0, "each bag, one thread", per_op=True),
    Parameter("lookup_ns", 4.0, 0.05, 500.0, "each lookup, one thread", per_op=True),
    Parameter("element_ns", 0.05, 1e-4, 20.0, "each element looked up, one thread", per_op=True),
    Parameter("miss_ns", 20.0, 0.5, 500.0, "a row that is in no cache, one thread", per_op=True),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    """Distinct rows from memory where the table is in no cache; all other bytes by what is held."""
    values, dims, device = call.values, call.dims, call.device
    spec = OPS[call.op].of(call.direction)
    lookups = dims["batch"] * dims["pooling"] if "pooling" in dims else dims["lookups"]
    tables = dims.get("tables", np.ones(len(call)))
    row_bytes = dims["dim"] * call.item_bytes
    distinct = dims["unique_rows"]
    guess = tables * distinct_rows(dims["hash_size"], lookups / tables, dims["zipf_alpha"])
    distinct = np.where(distinct > 0, distinct, guess)
    threads = np.minimum(float(device.sm_count), np.maximum(dims["batch"], 1.0))
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    per_lookup = values["lookup_ns"] + dims["dim"] * values["element_ns"]
    compute_us = 1e-3 * (dims["batch"] * tables * values["bag_ns"] + lookups * per_lookup)

    missing = distinct * call.beyond_caches(
        distinct * row_bytes, tables * dims["hash_size"] * row_bytes
    )
    if call.direction == "bwd":
        missing = np.zeros(len(call))
    miss_us = missing * (1e-3 * values["miss_ns"] + 1e-3 * row_bytes / values["dram_gb_per_s"])
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    dense = dims.get("dense", np.zeros(len(call)))
    held = np.where(dense > 0, moved, distinct * row_bytes + written)
    rest_us = call.moving_us(np.maximum(moved - missing * row_bytes, 0.0), held, speed_up)
    memory_us = miss_us / speed_up + rest_us
    both = slower(compute_us / speed_up, memory_us)
    bound = compute_us / speed_up >= memory_us
    return {
        "fork": call.fork_us(threads),
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(written),
    }


KERNELS.register("cpu/embedding/heuristic")(CpuFamily("embedding", PARAMETERS, _terms))
