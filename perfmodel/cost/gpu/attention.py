"""Physics of layers over sequences: fused attention, plain and jagged (HSTU), recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu import rates
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.hardware import Device
from perfmodel.ops.spec import item_bytes
from perfmodel.ops.vocabulary.matmul import DECODE, decodes, keys_heads, pairs, seen_keys
from perfmodel.ops.vocabulary.matmul import keys as keys_of

_C, _KERNEL = coefficients("gpu.attention"), coefficients("gpu.kernel")
_HALF_BYTES = 2.0
"""Of fewer only kernels are known that are not Triton's."""
QUERY_GRADIENTS = 2.0
"""Query gradients of a block are read and written for each block of keys."""


@analyse_by_group
def analyse_attention(group: Group, device: Device) -> Analysis:
    """Both products at the matrix units' rate, in waves of blocks, or keys and values as fast as
    the blocks at work draw them.

    A block has queries of one head; of one query over a cache those of all heads that share keys,
    and part of the keys where there are fewer blocks than multiprocessors, joined in the end.
    """
    dims, flop, sms = group.dims, group.flop, device.sm_count
    peak = rates.matrix_flop_per_us(device, group.dtypes)
    shared, keys = dims["heads"] / keys_heads(dims), seen_keys(dims)
    is_decode = (group.op == DECODE) | ((group.direction == "fwd") & (decodes(dims) > 0.0))
    all_heads = dims["b"] * dims["heads"]
    apart = np.floor(sms / (all_heads / shared))
    apart = np.clip(apart, 1.0, np.ceil(keys / _C.keys_per_part))
    parts = np.where(is_decode, apart, 1.0)
    by_queries = np.ceil(dims["s"] / _C.block_rows)
    blocks = parts * all_heads * np.where(is_decode, 1.0 / shared, by_queries)
    filled = np.where(is_decode, shared / _C.least_queries, dims["s"] / _C.block_rows)
    filled = np.minimum(1.0, filled)
    waves = np.ceil(blocks / sms)
    wave_frac = blocks / (waves * sms)
    narrow = np.minimum(1.0, dims["head_dim"] / _C.head_dim) ** 0.5
    reached = _C["reached_frac"].get(device.target, _C.usual_reached_frac)
    compute = flop / (peak * reached * narrow * filled * np.sqrt(wave_frac))
    cache = group.moved_bytes / (rates.l2_bytes_per_us(device) * np.minimum(1.0, blocks / sms))
    memory = rates.transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, rates.bound_us(group.moved_bytes, device))
    busy = np.maximum.reduce([compute, cache, memory, bound])
    return group.analysis(
        bound_us=bound,
        kernel_us=_KERNEL.start_us * np.where(parts > 1.0, 2.0, 1.0) + busy,
        shares={"compute": compute, "memory": memory, "cache": cache},
        features={
            "peak_us": flop / peak,
            "blocks_per_sm": waves,
            "wave_frac": wave_frac,
            "keys": keys,
            "shared": shared,
            "parts": parts,
            "queries_per_key": dims["s"] / keys_of(dims),
            "unmasked": pairs(dims) / (dims["s"] * keys),
        },
    )


@analyse_by_group
def analyse_jagged_attention(group: Group, device: Device) -> Analysis:
    """Per score: its products, SiLU and mask, and its share of the blocks that are loaded.

    Blocks on the diagonal are computed whole, and so is the last of each of `sequences`. Programs
    start anew for each block. Triton's do products and SiLU in turn, while the next block is
    loaded; CUTLASS's warps take turns, which hides most of SiLU. Backward its blocks keep two
    gradients in registers: the wider the heads, the fewer keys each query is loaded for.
    """
    dims, flop, way = group.dims, group.flop, group.direction
    peak = rates.matrix_flop_per_us(device, group.dtypes)
    is_narrow = group.item_bytes < _HALF_BYTES
    overlapped = (dims["cutlass"] > 0) | is_narrow
    is_large = overlapped | (device.target != "cuda")
    tile_rows = np.where(is_large, _C.block_rows, _C.triton_block_rows)
    sides = np.where(dims["sequences"] > 0, 2.0, 1.0)
    whole = 1.0 + sides * dims["tokens"] * tile_rows / 2.0 / dims["pairs"]
    scores = whole * dims["pairs"] * dims["heads"]
    widths = dims["head_dim"] + dims["value_dim"]
    if way == "bwd":
        widths = widths + QUERY_GRADIENTS * dims["head_dim"]

    def of_kernel(known: Mapping[str, float]) -> Floats:
        return np.where(overlapped, known[f"cutlass_{way}"], known["triton"])

    instructions = scores * _C["score_instructions"][way] / rates.issued_per_us(device)
    specials = scores * _C.score_specials / rates.special_per_us(device)
    loads = scores * widths * group.item_bytes / tile_rows / rates.l2_bytes_per_us(device)
    wide = dims["head_dim"] / _C.head_dim
    keeps_two = overlapped & (way == "bwd")
    executed = np.where(is_narrow, _C["executed"].get(device.target, 1.0), 1.0)
    executed = executed * np.where(keeps_two, np.maximum(wide, 1.0), 1.0)
    products = executed * whole * flop / (peak * device.gemm_peak_frac)
    elementwise = instructions + specials
    exposed = np.where(overlapped, _C["exposed_frac"][way], 1.0) * elementwise
    in_turn = (products + exposed) / of_kernel(_C["serial_frac"])
    blocks = (dims["tokens"] + dims["sequences"] * tile_rows / 2.0) / _C.triton_block_rows
    is_deep = overlapped & (way == "fwd")  # what starts is the pipeline, not a load of a block
    starts = of_kernel(_C["program_us"]) * blocks * dims["heads"] * np.where(is_deep, 1.0, wide)
    compute = np.maximum(in_turn, loads) + starts / device.sm_count
    call_us = np.where(overlapped, _C["call_us"][way], _KERNEL.start_us)
    memory = rates.transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, rates.bound_us(group.moved_bytes, device))
    return group.analysis(
        bound_us=bound,
        kernel_us=call_us + np.maximum(np.maximum(compute, memory), bound),
        shares={"compute": products + elementwise, "cache": loads, "memory": memory},
        features={"peak_us": flop / peak},
    )


_RECURRENT = coefficients("gpu.recurrent")
_FP32_BYTES = item_bytes("fp32")
"""Of a value of the state; of 16 bits two go at a time (assumed)."""


@analyse_by_group
def analyse_recurrent(group: Group, device: Device) -> Analysis:
    """Turns of a chain, each as many clocks, however much the device could move or compute.

    A persistent layer has a block per sequence with a thread per gate, which keeps a row of the
    weights in registers; each step goes over the state, value after value, and as many blocks run
    at a time as registers hold. The gradient of its bias has a block of 32 x 32 threads per 32
    units, which goes over all steps and sequences, 32 at a time.
    """
    dims = group.dims
    if group.op == "persistent_rnn":
        registers = dims["gates"] * dims["hidden"] * (dims["hidden"] + _RECURRENT.own_registers)
        at_once = np.maximum(np.floor(_RECURRENT.registers / registers), 1.0)
        waves = np.ceil(dims["batch"] / (device.sm_count * at_once))
        loads = dims["hidden"] * group.item_bytes / _FP32_BYTES
        clocks = waves * dims["steps"] * loads * _RECURRENT.value_clocks
    else:
        turns = np.ceil(dims["steps"] * dims["batch"] / _RECURRENT.bias_rows)
        clocks = turns * _RECURRENT.bias_clocks
    chain = clocks / device.boost_mhz
    bound = rates.bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(chain, bound),
        shares={"memory": bound, "latency": chain},
    )
