"""Embedding lookups on a CPU: rows gathered from caches and memory, pooled, and updated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import (
    MEMORY_PARAMETERS,
    Call,
    distinct_rows,
    hit_frac,
    overlapped_us,
    parameters,
    popular_frac,
    skew_of,
)
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.ops.spec import OPS, Dims
from perfmodel.ops.vocabulary.embedding import stored_row_bytes

_C = coefficients("cpu.embedding")
PARAMETERS = (*MEMORY_PARAMETERS, *parameters("cpu.embedding"))


def _terms(call: Call) -> Mapping[str, Floats]:
    """Rows by the cache level that their popularity keeps them in; all other bytes streamed."""
    values, dims, device = call.values, call.dims, call.device
    spec = OPS[call.op].of(call.direction)
    lookups = dims["batch"] * dims["pooling"] if "pooling" in dims else dims["lookups"]
    tables = dims.get("tables", np.ones(len(call)))
    row_bytes = stored_row_bytes(dims, call.item_bytes)
    distinct = _distinct(dims, lookups, tables)
    threads = np.minimum(float(device.sm_count), np.maximum(dims["batch"], 1.0))
    share, split = values["parallel_frac"], 1 / threads
    if call.direction == "update" and not call.alone:
        split = _busiest_frac(dims["hash_size"], lookups, distinct, threads)
    speed_up = 1 / (1 - share + share * split)
    per_lookup = values["lookup_ns"] + dims["dim"] * values["element_ns"]
    compute_us = 1e-3 * (dims["batch"] * tables * values["bag_ns"] + lookups * per_lookup)
    compute_us = compute_us / speed_up

    written = spec.written_bytes(dims, call.item_bytes)
    streamed = spec.read_bytes(dims, call.item_bytes) + written
    rows_us = np.zeros(len(call))
    held = streamed
    if call.direction != "bwd":
        rows_us = _rows_us(call, lookups, tables, distinct, row_bytes) / speed_up
        passes = 2.0 if call.direction == "update" else 0.0
        streamed = np.maximum(streamed - (lookups + passes * distinct) * row_bytes, 0.0)
        streamed = streamed + (passes > 0) * lookups * row_bytes
        held = streamed + distinct * row_bytes
    memory_us = rows_us + call.moving_us(streamed, held, speed_up)
    both = overlapped_us(compute_us, memory_us)
    bound = compute_us >= memory_us
    return {
        "fork": call.fork_us(threads),
        "compute": np.where(bound, both, 0.0),
        "memory": np.where(bound, 0.0, both),
        "faults": call.faults_us(written),
    }


def _busiest_frac(rows: Floats, lookups: Floats, distinct: Floats, threads: Floats) -> Floats:
    """Share of the lookups of the thread whose rows are the most popular.

    PyTorch adds a sparse gradient lookup by lookup, each by a call of BLAS. Threads have equal
    parts of the table and go through all indices for their own; popular rows lie side by side, as
    in tables numbered by first appearance (assumed), so that one of them does most. Source:
    `add_dense_sparse_worker_non_coalesced_cpu`, ATen/native/sparse/SparseTensorMath.cpp.
    """
    part = np.maximum(rows / threads, 1.0)
    return popular_frac(part, rows, skew_of(rows, lookups, distinct))


def _distinct(dims: Dims, lookups: Floats, tables: Floats) -> Floats:
    """Distinct rows of all tables: as stated, else as many as are expected."""
    told = dims["unique_rows"]
    guess = tables * distinct_rows(dims["hash_size"], lookups / tables, dims["zipf_alpha"])
    return np.where(told > 0, told, guess)


def _rows_us(
    call: Call, lookups: Floats, tables: Floats, distinct: Floats, row_bytes: Floats
) -> Floats:
    """Fetching the rows, one thread: first touches by the state of the caches, then by level."""
    values, device = call.values, call.device
    rows = call.dims["hash_size"]
    alpha = skew_of(rows, lookups / tables, distinct / tables)
    line_bytes = np.maximum(row_bytes, _C.line_bytes) * tables
    levels = (device.l2_bytes / device.sm_count, float(device.llc_bytes or device.l2_bytes))
    l2, llc = (hit_frac(level / line_bytes, rows, distinct / tables, alpha) for level in levels)
    first = np.minimum(distinct / lookups, 1.0)
    table_bytes = tables * rows * row_bytes
    beyond = first * call.beyond_caches(distinct * row_bytes, table_bytes)
    anew = (call.cold + call.in_step) > 0
    again = np.where(anew, 1 - first, 1.0)
    missing = np.where(anew, beyond, 0.0) + again * (1 - llc)
    near = np.where(anew, first - beyond, 0.0) + again * (llc - l2)
    moved_bytes = values["row_ratio"] * row_bytes
    ns_each = (
        missing * (values["miss_ns"] + moved_bytes / call.memory_gb_per_s())
        + near * (values["near_ns"] + moved_bytes * device.sm_count / values["llc_gb_per_s"])
        + again * l2 * moved_bytes * device.sm_count / values["l2_gb_per_s"]
    )
    return 1e-3 * lookups * ns_each


KERNELS.register("cpu/embedding/heuristic")(CpuFamily("embedding", PARAMETERS, _terms))
