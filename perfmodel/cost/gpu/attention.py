"""Physics of layers over sequences: fused attention, plain and jagged (HSTU), recurrent layers."""

from __future__ import annotations

import numpy as np

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import (
    bound_us,
    issued_per_us,
    l2_bytes_per_us,
    matrix_flop_per_us,
    special_per_us,
    transfer_us,
)
from perfmodel.hardware import Device

_C, _KERNEL = coefficients("gpu.attention"), coefficients("gpu.kernel")
QUERY_GRADIENTS = 2.0
"""Query gradients of a block are read and written for each block of keys."""


@analyse_by_group
def analyse_attention(group: Group, device: Device) -> Analysis:
    """Both products at the matrix units' rate, in waves of blocks of queries."""
    dims, flop = group.dims, group.flop
    peak = matrix_flop_per_us(device, group.dtypes)
    blocks = dims["b"] * dims["heads"] * np.ceil(dims["s"] / _C.queries_per_block)
    waves = np.ceil(blocks / device.sm_count)
    wave_frac = blocks / (waves * device.sm_count)
    narrow = np.minimum(1.0, dims["head_dim"] / _C.head_dim) ** 0.5
    filled = np.minimum(1.0, dims["s"] / _C.queries_per_block)
    reached = _C.table("reached_frac").get(device.target, _C.usual_reached_frac)
    compute = flop / (peak * reached * narrow * filled * np.sqrt(wave_frac))
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, bound_us(group.moved_bytes, device))
    return group.analysis(
        bound_us=bound,
        kernel_us=_KERNEL.start_us + np.maximum(np.maximum(compute, memory), bound),
        shares={"compute": compute, "memory": memory},
        features={"peak_us": flop / peak, "blocks_per_sm": waves, "wave_frac": wave_frac},
    )


@analyse_by_group
def analyse_jagged_attention(group: Group, device: Device) -> Analysis:
    """Per score: its products, SiLU and mask, and its share of the blocks that are loaded.

    Blocks on the diagonal are computed whole, and so is the last of each of `sequences`. Triton's
    programs start anew for each block and do products and SiLU in turn, while the next block is
    loaded; CUTLASS's warps take turns, so the slowest decides.
    """
    dims, flop, way = group.dims, group.flop, group.direction
    peak = matrix_flop_per_us(device, group.dtypes)
    overlapped = dims["cutlass"] > 0
    rows = _C.table("tile_rows")
    tile_rows = np.where(overlapped, rows["cutlass"], rows.get(device.target, rows["triton"]))
    sides = np.where(dims["sequences"] > 0, 2.0, 1.0)
    whole = 1.0 + sides * dims["tokens"] * tile_rows / 2.0 / dims["pairs"]
    scores = whole * dims["pairs"] * dims["heads"]
    widths = dims["head_dim"] + dims["value_dim"]
    if way == "bwd":
        widths = widths + QUERY_GRADIENTS * dims["head_dim"]
    instructions = scores * _C.table("score_instructions")[way] / issued_per_us(device)
    specials = scores * _C.score_specials / special_per_us(device)
    loads = scores * widths * group.item_bytes / tile_rows / l2_bytes_per_us(device)
    parts = {
        "products": whole * flop / (peak * device.gemm_peak_frac),
        "elementwise": instructions + specials,
        "cache": loads,
    }
    in_turn = (parts["products"] + parts["elementwise"]) / _C.serial_frac
    blocks = (dims["tokens"] + dims["sequences"] * tile_rows / 2.0) / rows["triton"]
    starts = _C.program_us * blocks * dims["heads"] * dims["head_dim"] / _C.head_dim
    serial = np.maximum(in_turn, loads) + starts / device.sm_count
    pipelined = np.maximum.reduce(list(parts.values())) / _C.pipelined_frac
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, bound_us(group.moved_bytes, device))
    compute = np.where(overlapped, pipelined, serial)
    return group.analysis(
        bound_us=bound,
        kernel_us=_KERNEL.start_us + np.maximum(np.maximum(compute, memory), bound),
        shares={
            "compute": parts["products"] + parts["elementwise"],
            "cache": loads,
            "memory": memory,
        },
        features={"peak_us": flop / peak},
    )


_RECURRENT = coefficients("gpu.recurrent")


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
        loads = dims["hidden"] * group.item_bytes / _RECURRENT.value_bytes
        clocks = waves * dims["steps"] * loads * _RECURRENT.value_clocks
    else:
        turns = np.ceil(dims["steps"] * dims["batch"] / _RECURRENT.bias_rows)
        clocks = turns * _RECURRENT.bias_clocks
    chain = clocks / device.boost_mhz
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(chain, bound),
        shares={"memory": bound, "latency": chain},
    )
