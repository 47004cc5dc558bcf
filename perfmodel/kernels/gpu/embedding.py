"""Physics of table lookups: rows from memory or from the L2, by how often they are used again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.embedding_update import update_terms
from perfmodel.kernels.gpu.machine import cache_bytes, hbm_bytes_per_us
from perfmodel.kernels.gpu.memory import missed_share
from perfmodel.kernels.gpu.reuse import distinct_rows, missed_lookups
from perfmodel.kernels.gpu.rows import (
    EARLY_START_US,
    LOOKUP_FRAC,
    NARROW_BYTES,
    START_US,
    RowUse,
    rows_cache_us,
    rows_memory_us,
    unpack_us,
)
from perfmodel.ops.spec import Dims, Floats
from perfmodel.ops.vocabulary.embedding import stored_row_bytes

_SECTOR_BYTES = 32.0
_CACHE_FRAC = 0.9
_WARPS_PER_SM = 45.0
"""Bags in flight. Source: Lin et al. 2022, 0.71 of 64 warps for FBGEMM's kernels."""
_MISS_US, _HIT_US = 0.6, 0.24
"""One more row of one bag, whose warp waits for it. Source: V100 DLRM trace (from memory, pages of
large tables looked up too), and nvprof times of 4,096 bags on V100 (from the L2)."""
_LONGEST = 2.5
"""Longest bag over the mean one, where nothing is said of it: tables differ, and so do bags."""

_ROWS_AHEAD = 8.0
"""Rows that a warp has on their way at once where they are quantised. Source: pytorch/FBGEMM,
codegen/embedding_forward_quantized_split_nbit_template.cu (asynchronous copies) and its launches:
two bags with 4 rows each, 8 of short ones."""
_GRADIENT_OF_WEIGHT = 1.4
"""A lookup whose products are added up over its warp, against one whose row is added to the bag's.
Source: A100 DLRM trace."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Misses of the L2 at the memory's rate, all lookups at the L2's, the longest bag in turn."""
    dims = group.dims
    use = _use(dims, group.item_bytes, group.in_program, device)
    if group.direction in ("fwd", "bwd_indice_weights"):
        terms = _lookup_terms(group, use, device)
    else:
        terms = update_terms(dims, use, device)
    needed = use.distinct * stored_row_bytes(dims, group.item_bytes)
    fits = needed < 0.5 * cache_bytes(device)
    bound = np.where(fits, 0.0, needed / hbm_bytes_per_us(device))
    start = terms.pop("start")
    longest = np.maximum.reduce([*terms.values(), bound])
    shares = {**terms, "latency": terms["latency"] + start}
    return Analysis(
        bound_us=bound,
        kernel_us=longest + start,
        shares=shares,
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={
            "hit_frac": 1.0 - use.missed / np.maximum(use.lookups, 1.0),
            "distinct_frac": use.distinct / np.maximum(use.lookups, 1.0),
        },
    )


def _lookup_terms(group: Group, use: RowUse, device: Device) -> dict[str, Floats]:
    looked_up = use.lookups * use.row_bytes
    stored = stored_row_bytes(group.dims, group.item_bytes)
    others = np.maximum(group.moved_bytes - use.lookups * stored, 0.0)
    missed_frac = use.missed / np.maximum(use.lookups, 1.0)
    each_us = missed_frac * _MISS_US + (1.0 - missed_frac) * _HIT_US
    told = group.dims["longest_bag"]
    longest = np.where(told > 0, told, np.maximum(1.0, _LONGEST * use.lookups / use.bags))
    in_flight = np.minimum(use.bags, device.sm_count * _WARPS_PER_SM)
    early = group.dims.get("early", np.zeros_like(longest)) > 0
    ahead = np.where(group.item_bytes < NARROW_BYTES, _ROWS_AHEAD, 1.0)
    summed = _GRADIENT_OF_WEIGHT if group.direction == "bwd_indice_weights" else 1.0
    return {
        "memory": rows_memory_us(use.missed * use.row_bytes + others, LOOKUP_FRAC, device),
        "cache": summed * rows_cache_us(looked_up + others, device),
        "latency": summed * np.maximum(longest, use.lookups / in_flight) * each_us / ahead,
        "dequantise": unpack_us(group.item_bytes, use.lookups, use.row_bytes, device),
        "start": np.where(early, EARLY_START_US, START_US),
    }


def _use(dims: Dims, item: Floats, in_program: NDArray[np.bool_], device: Device) -> RowUse:
    """How often rows are looked up, come from memory, and differ.

    Looked up over and over, rows that fit in the cache do not come from memory even once.
    """
    tables, lookups, bags = _counts(dims)
    row_bytes = np.ceil(stored_row_bytes(dims, item) / _SECTOR_BYTES) * _SECTOR_BYTES
    table_rows = np.maximum(dims["hash_size"], 1.0)
    in_flight = np.clip(device.sm_count * _WARPS_PER_SM / dims["batch"], 1.0, tables)
    cached = _CACHE_FRAC * cache_bytes(device) / (in_flight * row_bytes)
    per_table = lookups / tables
    known = dims["unique_rows"] / tables
    repeated = per_table - (per_table - known) * cached / np.maximum(known, 1.0)
    stated = np.where(known <= cached, known, repeated)
    stated = np.clip(stated, np.minimum(known, per_table), per_table)
    missed = missed_lookups(per_table, table_rows, cached, dims["zipf_alpha"])
    distinct = distinct_rows(per_table, table_rows, dims["zipf_alpha"])
    different = np.where(known > 0, known, distinct) * tables
    first = np.minimum(different, cached * tables)
    kept = np.where(in_program, 0.0, 1.0 - missed_share(different * row_bytes, device))
    return RowUse(
        tables=tables,
        lookups=lookups,
        bags=bags,
        missed=np.maximum(np.where(known > 0, stated, missed) * tables - kept * first, 0.0),
        distinct=different,
        row_bytes=row_bytes,
    )


def _counts(dims: Dims) -> tuple[Floats, Floats, Floats]:
    """(tables, lookups, bags) of either op."""
    if "tables" in dims:
        return dims["tables"], dims["lookups"], dims["tables"] * dims["batch"]
    return np.ones_like(dims["batch"]), dims["batch"] * dims["pooling"], dims["batch"]
