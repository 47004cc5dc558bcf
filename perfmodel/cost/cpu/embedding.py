"""Embedding lookups on a CPU: rows gathered from caches and memory, pooled, and updated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.zipf import touched_rows, zipf_classes
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.family import Call, bound_terms
from perfmodel.ops.vocabulary.embedding import stored_row_bytes

_C = coefficients("cpu.embedding")


MAX_ALPHA = 3.0
_HALVINGS = 12


def distinct_rows(rows: Floats, lookups: Floats, zipf_alpha: Floats) -> Floats:
    """Expected distinct rows of `lookups` drawn from `rows`, popularity rank r by `r ** -alpha`.

    `alpha` 0 is uniform. Rank r stands for the interval from r to r + 1, as for generators that
    invert the integral; all arguments have one value per table.
    """
    counts, share = zipf_classes(rows, zipf_alpha, smooth=True)
    touched = touched_rows(counts, share / np.maximum(counts, 1e-300), lookups)
    return np.asarray(np.minimum(touched, np.minimum(rows, lookups)))


def hit_frac(held: Floats, rows: Floats, distinct: Floats, alpha: Floats) -> Floats:
    """Share of lookups among the `held` most popular rows of which `distinct` occur.

    That of the popularity (`alpha`), and of the lookups of rows too rare to count on, evenly.
    """
    share = np.minimum(held / np.maximum(distinct, 1.0), 1.0)
    known = popular_frac(np.minimum(held, distinct), rows, alpha)
    return known + (1 - popular_frac(distinct, rows, alpha)) * share


def skew_of(rows: Floats, lookups: Floats, distinct: Floats) -> Floats:
    """The Zipf exponent at which `lookups` of `rows` touch about `distinct` of them."""
    told = zip(rows.tolist(), lookups.tolist(), distinct.tolist(), strict=True)
    return np.array([_skew(*each) for each in told])


@lru_cache(maxsize=1 << 14)
def _skew(rows: float, lookups: float, distinct: float) -> float:
    one, many, low, high = np.array([rows]), np.array([lookups]), 0.0, MAX_ALPHA
    if rows < 2 or distinct >= distinct_rows(one, many, np.zeros(1))[0]:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if distinct_rows(one, many, np.array([middle]))[0] > distinct:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def popular_frac(top: Floats, rows: Floats, alpha: Floats) -> Floats:
    """Share of lookups of the `top` most popular rows: the integral that a generator inverts."""
    power = np.where(np.abs(1 - alpha) < 1e-9, 1e-9, 1 - alpha)
    frac: Floats = np.expm1(power * np.log1p(top)) / np.expm1(power * np.log1p(rows))
    return np.minimum(frac, 1.0)


def embedding_terms(call: Call) -> Mapping[str, Floats]:
    """Rows by the cache level that their popularity keeps them in; all other bytes streamed."""
    values, dims, device = call.values, call.dims, call.device
    lookups = dims["batch"] * dims["pooling"] if "pooling" in dims else dims["lookups"]
    tables = dims.get("tables", np.ones(len(call)))
    row_bytes = stored_row_bytes(dims, call.item_bytes)
    distinct = tables * distinct_rows(dims["hash_size"], lookups / tables, dims["zipf_alpha"])
    distinct = np.where(dims["unique_rows"] > 0, dims["unique_rows"], distinct)
    threads = np.minimum(float(device.sm_count), np.maximum(dims["batch"], 1.0))
    split = 1 / threads
    if call.direction == "update" and not call.alone:
        # PyTorch adds a sparse gradient lookup by lookup. Threads have equal parts of the table and
        # go through all indices for their own; popular rows lie side by side, as in tables numbered
        # by first appearance (assumed), so that one of them does most. Source:
        # `add_dense_sparse_worker_non_coalesced_cpu`, ATen/native/sparse/SparseTensorMath.cpp.
        part = np.maximum(dims["hash_size"] / threads, 1.0)
        alpha = skew_of(dims["hash_size"], lookups, distinct)
        split = popular_frac(part, dims["hash_size"], alpha)
    speed_up = call.speed_up(split)
    per_lookup = values["lookup_ns"] + dims["dim"] * values["element_ns"]
    compute_us = 1e-3 * (dims["batch"] * tables * values["bag_ns"] + lookups * per_lookup)
    compute_us = compute_us / speed_up

    written, streamed = call.work[2], call.moved_bytes
    rows_us = np.zeros(len(call))
    held = streamed
    if call.direction != "bwd":
        rows_us = _rows_us(call, lookups, tables, distinct, row_bytes) / speed_up
        passes = 2.0 if call.direction == "update" else 0.0
        streamed = np.maximum(streamed - (lookups + passes * distinct) * row_bytes, 0.0)
        streamed = streamed + (passes > 0) * lookups * row_bytes
        held = streamed + distinct * row_bytes
    memory_us = rows_us + call.moving_us(streamed, held, speed_up)
    return {
        "fork": call.fork_us(threads),
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(written),
    }


def _rows_us(
    call: Call, lookups: Floats, tables: Floats, distinct: Floats, row_bytes: Floats
) -> Floats:
    """Fetching the rows, one thread: first touches by the state of the caches, then by level."""
    values, device = call.values, call.device
    rows = call.dims["hash_size"]
    alpha = skew_of(rows, lookups / tables, distinct / tables)
    line_bytes = np.maximum(row_bytes, _C.line_bytes) * tables
    levels = (device.l2_bytes / device.sm_count, call.llc_bytes)
    l2, llc = (hit_frac(level / line_bytes, rows, distinct / tables, alpha) for level in levels)
    first = np.minimum(distinct / lookups, 1.0)
    # Of the first touches those from memory: alone and warm, what the call itself touches is
    # cached; in a step, as much as the last-level cache holds of all that the step touches.
    beyond = np.maximum(1 - call.llc_bytes / np.maximum(distinct * row_bytes, 1.0), 0.0)
    if not call.alone:
        held = np.maximum(call.flag("step_bytes"), np.maximum(tables * rows * row_bytes, 1.0))
        beyond = np.maximum(1 - values["reuse_ratio"] * call.llc_bytes / held, 0.0)
    beyond = first * np.where(call.cold > 0, 1.0, beyond)
    anew = (call.cold > 0) | (not call.alone)
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
