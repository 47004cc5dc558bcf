"""Physics of table lookups and updates: rows from memory or from the L2, by their reuse.

Access probabilities fall as rank to the power -alpha (0: uniform), in classes of ranks as
`perfmodel.base.zipf` makes them. The cache keeps the most popular rows; each of those misses once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.zipf import touched_per_class, zipf_classes
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import (
    cache_bytes,
    hbm_bytes_per_us,
    issued_per_us,
    l2_bytes_per_us,
    missed_share,
)
from perfmodel.hardware import Device
from perfmodel.hardware.generations import nearest_known
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.embedding import stored_row_bytes


def missed_lookups(
    lookups: Floats, table_rows: Floats, cached_rows: Floats, zipf_alpha: Floats
) -> tuple[Floats, Floats]:
    """Out of `lookups` in one table, those that go to memory, at least the distinct cached rows,
    and the distinct rows; both on average.

    `lookups`, `table_rows`, `cached_rows` `[n]` counts, `zipf_alpha` `[n]`.
    """
    rows, share = zipf_classes(table_rows, zipf_alpha)
    less_popular = np.cumsum(rows, axis=1) - rows
    held = np.maximum(rows, 1e-300)
    cached = np.clip((cached_rows[:, None] - less_popular) / held, 0.0, 1.0)
    once = touched_per_class(rows, share / held, lookups)
    missed = np.sum(cached * once + (1.0 - cached) * share * lookups[:, None], axis=1)
    return np.minimum(missed, lookups), np.minimum(once.sum(axis=1), lookups)


_C, _KERNEL = coefficients("gpu.embedding"), coefficients("gpu.kernel")


@dataclass(frozen=True)
class RowUse:
    """What a batch does with rows, all tables together; one entry per row of the table."""

    tables: Floats
    lookups: Floats
    bags: Floats
    missed: Floats
    """Lookups whose row comes from memory."""
    distinct: Floats
    row_bytes: Floats
    """In whole sectors."""


def rows_memory_us(moved_bytes: Floats, reached_frac: float, device: Device) -> Floats:
    """Time of `moved_bytes` from and to memory, row by row."""
    return moved_bytes / (reached_frac * hbm_bytes_per_us(device))


def unpack_us(item_bytes: Floats, lookups: Floats, row_bytes: Floats, device: Device) -> Floats:
    """Time to issue what turns so many rows of elements of one byte or less into fp32 sums."""
    of_pass = np.where(item_bytes < 1.0, _C.nibble_instructions, _C.byte_instructions)
    passes = np.exp2(np.ceil(np.log2(np.maximum(row_bytes / _C.pass_bytes, 1.0))))
    each = np.where(item_bytes < _C.narrow_bytes, _C.row_instructions + of_pass * passes, 0.0)
    return np.asarray(lookups * each * _C.pass_lanes / (_C.issued_frac * issued_per_us(device)))


def rows_cache_us(moved_bytes: Floats, early: NDArray[np.bool_], device: Device) -> Floats:
    """Time of `moved_bytes` through the L2, row by row; `early` as in the dims."""
    known = nearest_known(device.architecture, _C.table("tbe_scattered_frac"))
    frac = _C.scattered_frac if known is None else _C.table("tbe_scattered_frac")[known]
    return moved_bytes / (np.where(early, _C.scattered_frac, frac) * l2_bytes_per_us(device))


def update_terms(dims: Dims, use: RowUse, device: Device) -> dict[str, Floats]:
    """Microseconds by resource, and `start` for what comes on top of the longest."""
    early = dims.get("early", np.zeros_like(use.lookups)) > 0
    state = dims.get("state_bytes", np.zeros_like(use.lookups))
    moved = np.where(early, use.missed, use.distinct) * 2.0 * (use.row_bytes + state)
    gradients = use.lookups * _C.gradient_bytes * dims["dim"]
    pooled = use.bags * _C.gradient_bytes * dims["dim"]
    once = np.minimum(pooled, gradients)
    again = np.where(pooled / use.tables > cache_bytes(device), gradients, once)
    memory = moved + np.where(early, pooled, again)
    through_cache = gradients + np.where(early, 2.0 * use.lookups * use.row_bytes, moved)
    lanes = device.sm_count * _C.update_warps_per_sm
    idle = use.lookups / lanes * (_C.idle_warp_us + _C.idle_warp_us / _C.lanes)
    if "tables" not in dims:
        # PyTorch's own kernels, whose sort is a piece of its own.
        return {
            "memory": rows_memory_us(memory, _C.update_frac, device),
            "cache": rows_cache_us(through_cache, np.ones(len(memory), bool), device),
            "latency": np.zeros_like(memory),
            "start": np.full_like(memory, _C.one_table_us),
        }
    # Lookups whose row has more than a warp adds up; run lengths fall off exponentially.
    shortest = _C.long_run * use.distinct / np.maximum(use.lookups, 1.0)
    in_long_runs = gradients * (1.0 + shortest) * np.exp(-shortest)
    blocks = in_long_runs * (1.0 / _C.run_frac - 1.0)
    around = _C.update_start_us + idle
    return {
        "memory": rows_memory_us(memory, _C.update_frac, device),
        "cache": rows_cache_us(through_cache + np.where(early, 0.0, blocks), early, device),
        "latency": np.zeros_like(memory),
        "start": np.where(early, _KERNEL.start_us, around),
    }


@analyse_by_group
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
    return group.analysis(
        bound_us=bound,
        kernel_us=longest + start,
        shares=shares,
        features={
            "hit_frac": 1.0 - use.missed / np.maximum(use.lookups, 1.0),
            "distinct_frac": use.distinct / np.maximum(use.lookups, 1.0),
        },
    )


def _lookup_terms(group: Group, use: RowUse, device: Device) -> dict[str, Floats]:
    looked_up = use.lookups * use.row_bytes
    stored = stored_row_bytes(group.dims, group.item_bytes)
    others = np.maximum(group.moved_bytes - use.lookups * stored, 0.0)
    told = group.dims["longest_bag"]
    longest = np.where(told > 0, told, np.maximum(1.0, _C.longest * use.lookups / use.bags))
    if "tables" not in group.dims:
        return _own_kernel_terms(group, use, looked_up + others, device)
    at_once = device.sm_count * _C.lookup_warps_per_sm
    waited = use.missed * _C.miss_us + (use.lookups - use.missed) * _C.hit_us
    missed_us = _missed_alone(group, use, longest, device) * (_C.miss_us - _C.hit_us)
    one_bag = longest * _C.hit_us + missed_us
    in_turn_us = np.maximum(one_bag, waited / np.minimum(use.bags, at_once))
    early = group.dims.get("early", np.zeros_like(longest)) > 0
    more_waves = np.where(early, 0.0, np.maximum(use.bags / at_once - 1.0, 0.0))
    ahead = np.where(group.item_bytes < _C.narrow_bytes, _C.rows_ahead, 1.0)
    summed = _C.gradient_of_weight if group.direction == "bwd_indice_weights" else 1.0
    return {
        "memory": rows_memory_us(use.missed * use.row_bytes + others, _C.lookup_frac, device),
        "cache": summed * rows_cache_us(looked_up + others, early, device),
        "latency": summed * in_turn_us / ahead + _C.bag_us * more_waves,
        "dequantise": unpack_us(group.item_bytes, use.lookups, use.row_bytes, device),
        "start": np.where(early, _KERNEL.start_us, _C.start_us),
    }


def _own_kernel_terms(
    group: Group, use: RowUse, through_cache: Floats, device: Device
) -> dict[str, Floats]:
    """PyTorch's own kernel for one table: a warp for as many columns of a bag as it has lanes, rows
    one after another; a fixed number of blocks takes bags in turns.

    What every warp issues, and what one waits for, come on top of one another. The bags of a turn
    miss the cache independently: the unluckiest of so many decides.
    Source: aten/src/ATen/native/cuda/EmbeddingBag.cu.
    """
    told, mean = group.dims["longest_bag"], use.lookups / use.bags
    lanes = _C.table("own_lanes")[device.target]
    warps = use.bags * np.ceil(group.dims["dim"] / lanes)
    instructions = warps * (_C.own_bag_instructions + _C.own_row_instructions * mean)
    issued_us = instructions * lanes / issued_per_us(device)
    turns = np.ceil(warps * lanes / _C.own_threads)
    longest = np.maximum(np.where(told > 0, told, mean), 1.0)
    missed_frac = use.missed / np.maximum(use.lookups, 1.0)
    in_turn = (turns - 1.0) * mean + longest
    missed, at_once = longest * missed_frac, np.maximum(use.bags / turns, 1.0)
    unlucky = np.sqrt(2.0 * missed * (1.0 - missed_frac) * np.log(at_once))
    missed = np.minimum(in_turn * missed_frac + unlucky, in_turn)
    waited_us = in_turn * _C.own_hit_us + missed * (_C.own_miss_us - _C.own_hit_us)
    everywhere = np.ones(len(longest), np.bool_)
    return {
        "memory": rows_memory_us(use.missed * use.row_bytes, _C.lookup_frac, device),
        "cache": rows_cache_us(through_cache, everywhere, device),
        "latency": issued_us + waited_us,
        "start": np.full_like(longest, _KERNEL.start_us),
    }


def _missed_alone(group: Group, use: RowUse, longest: Floats, device: Device) -> Floats:
    """Lookups of the longest bag that find nothing in the cache, whatever the other bags do."""
    different = np.minimum(longest, group.dims["hash_size"])
    gone = missed_share(use.distinct * use.row_bytes, device)
    return np.where(group.in_program, different, different * gone)


def _use(dims: Dims, item: Floats, in_program: NDArray[np.bool_], device: Device) -> RowUse:
    """How often rows are looked up, come from memory, and differ.

    Looked up over and over, rows that fit in the cache do not come from memory even once.
    """
    if "tables" in dims:
        tables, lookups, bags = dims["tables"], dims["lookups"], dims["tables"] * dims["batch"]
    else:
        bags, tables = dims["batch"], np.ones_like(dims["batch"])
        lookups = bags * dims["pooling"]
    row_bytes = np.ceil(stored_row_bytes(dims, item) / _C.sector_bytes) * _C.sector_bytes
    table_rows = np.maximum(dims["hash_size"], 1.0)
    in_flight = np.clip(device.sm_count * _C.lookup_warps_per_sm / dims["batch"], 1.0, tables)
    cached = _C.cache_frac * cache_bytes(device) / (in_flight * row_bytes)
    per_table = lookups / tables
    known = dims["unique_rows"] / tables
    repeated = per_table - (per_table - known) * cached / np.maximum(known, 1.0)
    stated = np.where(known <= cached, known, repeated)
    stated = np.clip(stated, np.minimum(known, per_table), per_table)
    missed, distinct = missed_lookups(per_table, table_rows, cached, dims["zipf_alpha"])
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
