"""Physics of the update of table rows from sorted lookups: short runs of equal rows to a warp each,
long ones to a block each, and the warps that find nothing to do.

Constants, unless said otherwise, are of the A100 DLRM trace (15.8 million and 60,000 lookups).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import cache_bytes
from perfmodel.kernels.gpu.rows import (
    EARLY_START_US,
    UPDATE_FRAC,
    RowUse,
    rows_cache_us,
    rows_memory_us,
)
from perfmodel.ops.spec import Dims, Floats

_LONG_RUN = 32.0
"""Lookups of one row from which a block adds them up. Source: FBGEMM, its backward template."""
_LONG_RUN_US = 7.3
"""A block on one long run: its lookups in shares, the sum of those, the row and its state."""
_LANES = 32.0
_WARPS_PER_SM = 64.0
_IDLE_WARP_US = 0.525
"""A warp that loads the number of runs and ends: there is one per lookup, whatever the runs."""
_FIND_US, _BLOCKS_US, _WARPS_US = 3.5, 4.0, 12.0
"""The kernels without work: finding long runs, blocks on them, warps on short ones."""
_ONE_TABLE_US = 6.0
_GRADIENT_BYTES = 4.0


def update_terms(dims: Dims, use: RowUse, device: Device) -> dict[str, Floats]:
    """Microseconds by resource, and `start` for what comes on top of the longest."""
    early = dims.get("early", np.zeros_like(use.lookups)) > 0
    state = dims.get("state_bytes", np.zeros_like(use.lookups))
    moved = np.where(early, use.missed, use.distinct) * 2.0 * (use.row_bytes + state)
    gradients = use.lookups * _GRADIENT_BYTES * dims["dim"]
    pooled = use.bags * _GRADIENT_BYTES * dims["dim"]
    again = np.where(pooled / use.tables > cache_bytes(device), gradients, pooled)
    memory = moved + np.where(early, pooled, again)
    through_cache = gradients + np.where(early, 2.0 * use.lookups * use.row_bytes, moved)
    lanes = device.sm_count * _WARPS_PER_SM
    idle = use.lookups / lanes * (_IDLE_WARP_US + _IDLE_WARP_US / _LANES)
    if "tables" not in dims:
        return _one_table(memory, through_cache, device)
    blocks = _LONG_RUN_US * _long_runs(use) / device.sm_count
    one_block = np.where(_has_small_table(dims, use), _LONG_RUN_US, 0.0)
    around = _FIND_US + _BLOCKS_US + _WARPS_US + idle
    return {
        "memory": rows_memory_us(memory, UPDATE_FRAC, device),
        "cache": rows_cache_us(through_cache, device),
        "latency": np.where(early, 0.0, np.maximum(blocks, one_block)),
        "start": np.where(early, EARLY_START_US, around),
    }


def _one_table(memory: Floats, through_cache: Floats, device: Device) -> dict[str, Floats]:
    """Of PyTorch's own kernels, whose sort is a piece of its own."""
    return {
        "memory": rows_memory_us(memory, UPDATE_FRAC, device),
        "cache": rows_cache_us(through_cache, device),
        "latency": np.zeros_like(memory),
        "start": np.full_like(memory, _ONE_TABLE_US),
    }


def _long_runs(use: RowUse) -> Floats:
    """Rows with more lookups than a warp adds up; run lengths fall off exponentially."""
    return use.distinct * np.exp(-_LONG_RUN * use.distinct / np.maximum(use.lookups, 1.0))


def _has_small_table(dims: Dims, use: RowUse) -> NDArray[np.bool_]:
    """Whether one table of several may have a row with a long run, for all that is said of it."""
    several = (use.tables > 1.0) & (use.lookups / use.tables > _LONG_RUN)
    found: NDArray[np.bool_] = several & (dims["unique_rows"] == 0.0)
    return found
