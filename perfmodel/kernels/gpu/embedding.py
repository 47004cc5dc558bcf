"""Physics of table lookups: rows from memory or from the L2, by how often they are used again."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import (
    cache_bytes,
    hbm_bytes_per_us,
    l2_bytes_per_us,
)
from perfmodel.kernels.gpu.reuse import distinct_rows, missed_lookups
from perfmodel.ops.spec import Dims, Floats

_SECTOR_BYTES = 32.0
_RANDOM_FRAC = 0.75
"""Share of the memory's peak that long random reads of whole rows reach."""
_HEADER_BYTES = 48.0
"""What a row costs beside its bytes: short rows use less of a burst."""
_CACHE_FRAC = 0.9
_WARPS_PER_SM = 45.0
"""Bags in flight. Source: Lin et al. 2022, 0.71 of 64 warps for FBGEMM's kernels."""
_START_US = 2.0
_LOOKUP_US = 0.12
"""One more row of one bag, with the loads of several rows in flight."""
_UPDATE_FRAC = 0.6
_SEGMENT_US = 6.0
"""Kernels that find the segments of equal indices, beside the one that updates."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Misses of the L2 at the memory's rate, all lookups at the L2's."""
    dims, item = group.dims, group.item_bytes
    tables, lookups, bags = _counts(dims)
    row_bytes = np.ceil(item * dims["dim"] / _SECTOR_BYTES) * _SECTOR_BYTES
    table_rows = np.maximum(dims["hash_size"], 1.0)
    in_flight = np.clip(device.sm_count * _WARPS_PER_SM / dims["batch"], 1.0, tables)
    cached = _CACHE_FRAC * cache_bytes(device) / (in_flight * row_bytes)
    per_table = lookups / tables
    missed = missed_lookups(per_table, table_rows, cached, dims["zipf_alpha"])
    distinct = distinct_rows(per_table, table_rows, dims["zipf_alpha"])
    known = dims["unique_rows"] / tables
    stated = np.where(
        known <= cached, known, per_table - (per_table - known) * cached / np.maximum(known, 1.0)
    )
    missed = (
        np.where(known > 0, np.clip(stated, np.minimum(known, per_table), per_table), missed)
        * tables
    )
    distinct = np.where(known > 0, known, distinct) * tables
    looked_up = lookups * row_bytes
    others = np.maximum(group.moved_bytes - looked_up, 0.0)
    if group.direction == "fwd":
        from_memory = missed * (row_bytes + _HEADER_BYTES) + others
        through_cache, reached, latency = looked_up + others, _RANDOM_FRAC, _START_US
        needed = distinct * item * dims["dim"]
    else:
        rows_moved = 2.0 * distinct * (row_bytes + _HEADER_BYTES)
        gradients = lookups * 4.0 * dims["dim"]
        pooled = bags * 4.0 * dims["dim"]
        from_memory = rows_moved + np.where(pooled > cache_bytes(device), gradients, pooled)
        through_cache, reached, latency = gradients + rows_moved, _UPDATE_FRAC, _SEGMENT_US
        needed = distinct * item * dims["dim"]
    memory = from_memory / (reached * hbm_bytes_per_us(device))
    cache = through_cache / l2_bytes_per_us(device)
    serial = _LOOKUP_US * lookups / bags
    fits = needed < 0.5 * cache_bytes(device)
    bound = np.where(fits, 0.0, needed / hbm_bytes_per_us(device))
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, cache, serial, bound]) + latency,
        shares={"memory": memory, "cache": cache, "latency": serial + latency},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={
            "hit_frac": 1.0 - missed / np.maximum(lookups, 1.0),
            "distinct_frac": distinct / np.maximum(lookups, 1.0),
        },
    )


def _counts(dims: Dims) -> tuple[Floats, Floats, Floats]:
    """(tables, lookups, bags) of either op."""
    if "tables" in dims:
        return dims["tables"], dims["lookups"], dims["tables"] * dims["batch"]
    return np.ones_like(dims["batch"]), dims["batch"] * dims["pooling"], dims["batch"]
