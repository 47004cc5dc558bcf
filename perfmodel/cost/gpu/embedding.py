"""Physics of table lookups and updates, and of the jagged tensors and sorts around them: rows from
memory or from the L2, by their reuse.

Access probabilities fall as rank to the power -alpha (0: uniform), in classes of ranks as
`perfmodel.embedding.popularity` makes them. The cache keeps the most popular rows; each of those
misses once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu import rates
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.program import resident_warps
from perfmodel.embedding.popularity import touched_class_rows, zipf_classes
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims, item_bytes
from perfmodel.ops.vocabulary.embedding import stored_row_bytes
from perfmodel.ops.vocabulary.streaming import BLOCK_KEYS, keys_of_block


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
    once = touched_class_rows(rows, share / held, lookups)
    missed = np.sum(cached * once + (1.0 - cached) * share * lookups[:, None], axis=1)
    return np.minimum(missed, lookups), np.minimum(once.sum(axis=1), lookups)


_C, _J = coefficients("gpu.embedding"), coefficients("gpu.jagged")
_KERNEL, _LOAD_US = coefficients("gpu.kernel"), coefficients("gpu.reductions").load_us
_FP32_BYTES = item_bytes("fp32")


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


def _rows_us(
    memory_bytes: Floats, frac: float, cache_bytes: Floats, early: Mask | bool, device: Device
) -> dict[str, Floats]:
    """Time of bytes from and to memory, of whose rate `frac` is reached, and through the L2, row by
    row; `early` as in the dims."""
    before_ampere = rates.is_older(device, "8.0")
    known = np.where(early | (not before_ampere), _C.scattered_frac, _C.tbe_scattered_frac)
    memory_us = memory_bytes / (frac * rates.hbm_bytes_per_us(device))
    cache_us = cache_bytes / (known * rates.l2_bytes_per_us(device))
    return {"memory": memory_us, "cache": cache_us}


def update_terms(dims: Dims, use: RowUse, device: Device) -> dict[str, Floats]:
    """Microseconds by resource, and `start` for what comes on top of the longest."""
    nothing = np.zeros_like(use.lookups)
    early = dims.get("early", nothing) > 0
    moved = np.where(early, use.missed, use.distinct) * 2.0
    moved = moved * (use.row_bytes + dims.get("state_bytes", nothing))
    wide = dims.get("output_bytes", np.full_like(use.bags, _FP32_BYTES))  # of a gradient's element
    gradients, pooled = (rows * wide * dims["dim"] for rows in (use.lookups, use.bags))
    in_cache = np.minimum(pooled, gradients)
    again = np.where(pooled / use.tables > device.last_cache_bytes, gradients, in_cache)
    memory = moved + np.where(early, pooled, again)
    through_cache = gradients + np.where(early, 2.0 * use.lookups * use.row_bytes, moved)
    if "tables" not in dims:  # PyTorch's own kernels, whose sort is a piece of its own
        terms = _rows_us(memory, _C.update_frac, through_cache, True, device)
        return {**terms, "latency": nothing, "start": np.full_like(memory, _KERNEL.start_us)}
    # A warp per lookup, whatever the runs, of which most find nothing to do.
    lanes = rates.LANES["cuda"]
    idle = use.lookups / resident_warps(device) * (_C.idle_warp_us + _C.idle_warp_us / lanes)
    # Lookups whose row has more than a warp adds up; run lengths fall off exponentially.
    shortest = _C.long_run * use.distinct / np.maximum(use.lookups, 1.0)
    in_long_runs = gradients * (1.0 + shortest) * np.exp(-shortest)
    blocks = np.where(early, 0.0, in_long_runs * (1.0 / _C.run_frac - 1.0))
    start = np.where(early, _KERNEL.start_us, _C.update_start_us + idle)
    terms = _rows_us(memory, _C.update_frac, through_cache + blocks, early, device)
    return {**terms, "latency": nothing, "start": start}


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
    fits, start = needed < 0.5 * device.last_cache_bytes, terms.pop("start")
    bound = np.where(fits, 0.0, needed / rates.hbm_bytes_per_us(device))
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
    dims, is_own = group.dims, "tables" not in group.dims
    looked_up, stored = use.lookups * use.row_bytes, stored_row_bytes(dims, group.item_bytes)
    others = np.maximum(group.moved_bytes - use.lookups * stored, 0.0)
    mean, told = use.lookups / use.bags, dims["longest_bag"]
    usual = np.maximum(1.0, mean if is_own else _C.longest * mean)
    longest = np.where(told > 0, told, usual)
    missed_bytes = use.missed * use.row_bytes
    if is_own:
        terms = _rows_us(missed_bytes, _C.lookup_frac, looked_up + others, True, device)
        start = np.full_like(longest, _KERNEL.start_us)
        return {**terms, "latency": _own_kernel_us(group, use, longest, device), "start": start}
    at_once = device.sm_count * _C.lookup_warps_per_sm
    waited = use.missed * _C.miss_us + (use.lookups - use.missed) * _C.hit_us
    # Lookups of the longest bag that find nothing in the cache, whatever the other bags do.
    different = np.minimum(longest, dims["hash_size"])
    gone = rates.missed_share(use.distinct * use.row_bytes, device)
    different = np.where(group.in_program, different, different * gone)
    one_bag = longest * _C.hit_us + different * (_C.miss_us - _C.hit_us)
    in_turn_us = np.maximum(one_bag, waited / np.minimum(use.bags, at_once))
    early = dims.get("early", np.zeros_like(longest)) > 0
    more_waves = np.where(early, 0.0, np.maximum(use.bags / at_once - 1.0, 0.0))
    ahead = np.where(group.item_bytes < 2.0, _C.rows_ahead, 1.0)
    terms = _rows_us(missed_bytes + others, _C.lookup_frac, looked_up + others, early, device)
    return {
        **terms,
        "latency": in_turn_us / ahead + _C.bag_us * more_waves,
        "dequantise": _dequantise_us(group.item_bytes, use, device),
        "start": np.where(early, _KERNEL.start_us, _C.start_us),
    }


def _dequantise_us(item_bytes: Floats, use: RowUse, device: Device) -> Floats:
    """Time to issue what turns rows of elements of one byte or less into fp32 sums."""
    of_pass = np.where(item_bytes < 1.0, _C.nibble_instructions, _C.byte_instructions)
    in_fp32 = use.row_bytes / (rates.LANES["cuda"] * _FP32_BYTES)
    passes = np.exp2(np.ceil(np.log2(np.maximum(in_fp32, 1.0))))
    each = np.where(item_bytes < 2.0, _C.row_instructions + of_pass * passes, 0.0)
    return np.asarray(use.lookups * each * rates.LANES["cuda"] / rates.issued_per_us(device))


def _own_kernel_us(group: Group, use: RowUse, longest: Floats, device: Device) -> Floats:
    """PyTorch's own kernel for one table: a warp for as many columns of a bag as it has lanes, rows
    one after another; a fixed number of blocks takes bags in turns.

    What every warp issues, and what one waits for, come on top of one another. The bags of a turn
    miss the cache independently: the unluckiest of so many decides.
    Source: aten/src/ATen/native/cuda/EmbeddingBag.cu.
    """
    mean, lanes = use.lookups / use.bags, rates.LANES[device.target]
    warps = use.bags * np.ceil(group.dims["dim"] / lanes)
    instructions = warps * (_C.own_bag_instructions + _C.own_row_instructions * mean)
    turns = np.ceil(warps * lanes / _C.own_threads)
    missed_frac = use.missed / np.maximum(use.lookups, 1.0)
    in_turn = (turns - 1.0) * mean + longest
    missed, at_once = longest * missed_frac, np.maximum(use.bags / turns, 1.0)
    unlucky = np.sqrt(2.0 * missed * (1.0 - missed_frac) * np.log(at_once))
    missed = np.minimum(in_turn * missed_frac + unlucky, in_turn)
    waited_us = in_turn * _C.own_hit_us + missed * (_C.own_miss_us - _C.own_hit_us)
    return np.asarray(instructions * lanes / rates.issued_per_us(device) + waited_us)


def _use(dims: Dims, item: Floats, in_program: NDArray[np.bool_], device: Device) -> RowUse:
    """How often rows are looked up, come from memory, and differ.

    Looked up over and over, rows that fit in the cache do not come from memory even once.
    """
    if "tables" in dims:
        tables, lookups, bags = dims["tables"], dims["lookups"], dims["tables"] * dims["batch"]
    else:
        bags, tables = dims["batch"], np.ones_like(dims["batch"])
        lookups = bags * dims["pooling"]
    row_bytes = np.ceil(stored_row_bytes(dims, item) / rates.SECTOR_BYTES) * rates.SECTOR_BYTES
    table_rows = np.maximum(dims["hash_size"], 1.0)
    in_flight = np.clip(device.sm_count * _C.lookup_warps_per_sm / dims["batch"], 1.0, tables)
    cached = _C.cache_frac * device.last_cache_bytes / (in_flight * row_bytes)
    per_table = lookups / tables
    known = dims["unique_rows"] / tables
    repeated = per_table - (per_table - known) * cached / np.maximum(known, 1.0)
    stated = np.where(known <= cached, known, repeated)
    stated = np.clip(stated, np.minimum(known, per_table), per_table)
    missed, distinct = missed_lookups(per_table, table_rows, cached, dims["zipf_alpha"])
    different = np.where(known > 0, known, distinct) * tables
    first = np.minimum(different, cached * tables)
    kept = np.where(in_program, 0.0, 1.0 - rates.missed_share(different * row_bytes, device))
    return RowUse(
        tables=tables,
        lookups=lookups,
        bags=bags,
        missed=np.maximum(np.where(known > 0, stated, missed) * tables - kept * first, 0.0),
        distinct=different,
        row_bytes=row_bytes,
    )


_BY_LANES = frozenset({"linearize_index"})
"""Whose segments have a lane each, not a warp."""


@analyse_by_group
def analyse_jagged(group: Group, device: Device) -> Analysis:
    """Bytes in pieces of sectors, against waves of warps that wait for their loads."""
    dims, op = group.dims, group.op
    segments = np.minimum(dims["segments"], dims["elements"])
    fragments = rates.SECTOR_BYTES * _J.usual_streams * segments
    memory = (group.moved_bytes + fragments) / rates.stream_bytes_per_us(device)
    warps = segments / (rates.LANES["cuda"] if op in _BY_LANES else 1.0)
    waves = np.maximum(1.0, warps / resident_warps(device))
    longest = _C.longest * dims["elements"] / segments
    rounds = np.maximum(1.0, longest / rates.LANES[device.target])
    latency = waves * rounds * _J["chain_us"].get(op, _J.usual_chain_us)
    bound = rates.bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, latency, bound]) + _KERNEL.start_us,
        shares={"memory": memory, "latency": latency + _KERNEL.start_us},
    )


@analyse_by_group
def analyse_sorting(group: Group, device: Device) -> Analysis:
    """Passes over the keys at the memory's rate, each with its kernels' starts."""
    op, dims, moved = group.op, group.dims, group.moved_bytes
    passes, clocks = np.ones(len(moved)), np.zeros(len(moved))  # clocks while keys move
    waits = op in ("cumsum", "run_length_encode")  # its blocks, for the sum of those before
    latency = np.full(len(moved), _J.scan_us if waits else _KERNEL.start_us)
    if op == "bucketize":
        latency = latency + _LOAD_US * np.log2(dims["boundaries"] + 1.0)
    elif op == "cumsum":  # along several rows: a tree of sums with barriers for every few columns
        clocks = np.where(dims["rows"] > 1.0, _J.scan_clocks * dims["rows"] * dims["cols"], 0.0)
    elif op == "topk":  # keys counted digit by digit, then those found gathered
        passes, digits = passes + 1.0, np.ceil(8.0 * group.item_bytes / _J.radix_bits)
        latency = _KERNEL.start_us * (digits + passes)
        clocks = dims["rows"] * dims["cols"] * (digits + passes) / _J.counted_per_sm_per_clock
    elif op in ("sort", "sort_pairs", "unique"):
        passes, latency = _sort(group, device)
        if op == "unique":  # flags, their sums, the distinct keys, their places: a kernel each
            passes, latency = passes + 2.0, latency + 4 * _KERNEL.start_us
    memory = rates.transfer_us(passes * moved, device)
    bound = rates.bound_us(moved, device)
    counting = clocks / (device.sm_count * device.boost_mhz)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, bound, counting]) + latency,
        shares={"memory": memory, "latency": latency},
        features={"passes": passes},
    )


def _sort(group: Group, device: Device) -> tuple[Floats, Floats]:
    """How often all bytes move, and latency in microseconds, of a sort along `cols`."""
    dims, item = group.dims, group.item_bytes
    stated = dims.get("key_bits", np.zeros_like(item))
    bits = np.where(stated > 0, stated, 8.0 * item)
    radix = np.ceil(bits / _J.radix_bits)
    keys = keys_of_block(item) if group.op == "sort_pairs" else BLOCK_KEYS
    on_chip = dims["cols"] <= keys
    blocks = np.maximum(1.0, dims["rows"] * dims["cols"] / (keys * device.sm_count))
    block_us = rates.of_generation(device, _J["on_chip_us"]) + _J.on_chip_pass_us * radix
    return (
        np.where(on_chip, 1.0, _J.scattered * radix),
        np.where(on_chip, blocks * block_us, _J.pass_us * (radix + 1.0)),
    )
