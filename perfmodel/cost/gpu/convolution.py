"""Physics of convolutions, pooling and fused attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.laid_out import laid_out, stride
from perfmodel.cost.gpu.matmul import fastest_of_either
from perfmodel.cost.gpu.rates import (
    bound_us,
    has_matrix_units,
    hbm_bytes_per_us,
    issued_per_us,
    l2_bytes_per_us,
    matrix_flop_per_us,
    special_per_us,
    stream_bytes_per_us,
    transfer_us,
    vector_flop_per_us,
)
from perfmodel.cost.gpu.winograd import winograd_us
from perfmodel.hardware import Device
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.matmul import (
    input_area,
    input_sides,
    kernel_area,
    output_area,
    output_sides,
)

_C = coefficients("gpu.convolution")
CUDA = "cuda"
_COMPILED_WINDOWS = (1, 3, 5)
"""Sides of windows for which PyTorch's depthwise kernel is compiled; others it reads."""
QUERY_GRADIENTS = 2.0
"""Query gradients of a block are read and written for each block of keys."""


@analyse_by_group
def analyse_attention(group: Group, device: Device) -> Analysis:
    """Both products at the matrix units' rate, in waves of blocks of queries; at least as long as
    one block takes, which goes over its keys, a block of them after the other (as many as were
    seen to)."""
    dims, flop = group.dims, group.flop
    peak = matrix_flop_per_us(device, group.dtypes)
    blocks = dims["b"] * dims["heads"] * np.ceil(dims["s"] / _C.queries_per_block)
    waves = np.ceil(blocks / device.sm_count)
    wave_frac = blocks / (waves * device.sm_count)
    narrow = np.minimum(1.0, dims["head_dim"] / _C.head_dim) ** 0.5
    filled = np.minimum(1.0, dims["s"] / _C.queries_per_block)
    reached = _C.table("reached_frac").get(device.target, _C.usual_reached_frac)
    compute = flop / (peak * reached * narrow * filled * np.sqrt(wave_frac))
    keys = np.where(dims["s_kv"] > 0, dims["s_kv"], dims["past"] + dims["s"])
    keys = np.where(dims["window_size"] > 0, np.minimum(keys, dims["window_size"]), keys)
    turns = np.minimum(np.ceil(keys / _C.queries_per_block), _C.key_blocks)
    compute = np.maximum(compute, turns * _C.table("key_block_us").get(device.target, 0.0))
    if group.direction == "fwd" and device.target == CUDA:
        in_fp32 = np.array([dtype == "fp32" for dtype in group.dtypes])
        compute = np.where(in_fp32, _fp32_attention_us(dims, keys, device), compute)
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, bound_us(group.moved_bytes, device))
    return Analysis(
        bound_us=bound,
        kernel_us=_C.attention_start_us + np.maximum(np.maximum(compute, memory), bound),
        shares={"compute": compute, "memory": memory},
        flop=flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={"peak_us": flop / peak, "blocks_per_sm": waves, "wave_frac": wave_frac},
    )


def _fp32_attention_us(dims: Dims, keys: Floats, device: Device) -> Floats:
    """PyTorch's memory-efficient kernel: a block for so many queries of a head takes as many keys
    after as many, whole where only some of them are there; causal, up to its own.

    Source: aten/src/ATen/native/transformers/cuda/mem_eff_attention (`fmha_cutlassF_f32_aligned`
    of 64 x 64, or 32 x 128 where heads are wide).
    """
    side = _C.fp32_block
    blocks = np.ceil(dims["s"] / side)
    turns = np.ceil(keys / side)
    turns = np.where(dims["causal"] > 0, np.maximum(turns - (blocks - 1.0) / 2.0, 1.0), turns)
    scores = _C.fp32_score_clocks + _C.fp32_score_dim_clocks * dims["head_dim"]
    clocks = _C.fp32_block_clocks + turns * side**2 * scores
    per_sm = np.maximum(dims["b"] * dims["heads"] * blocks / device.sm_count, 1.0)
    return np.asarray(per_sm * clocks / device.boost_mhz)


@analyse_by_group
def analyse_jagged_attention(group: Group, device: Device) -> Analysis:
    """Per score: its products, SiLU and mask, and its share of the blocks that are loaded.

    Blocks on the diagonal are computed whole, and so is the last of each of `sequences`. Triton's
    programs start anew for each block and do products and SiLU in turn, while the next block is
    loaded; CUTLASS's warps take turns, so the slowest decides. A bias by distance in places and
    time is looked up for each score of each head; its gradient (`bwd_bias`) is a kernel of its own,
    which computes the scores again, sums over heads and adds each sum to the bucket of its time.
    """
    dims, flop, way = group.dims, group.flop, group.direction
    peak = matrix_flop_per_us(device, group.dtypes)
    overlapped = dims["cutlass"] > 0
    rows = _C.table("tile_rows")
    tile_rows = np.where(overlapped, rows["cutlass"], rows.get(device.target, rows["triton"]))
    sides = np.where(dims["sequences"] > 0, 2.0, 1.0)
    whole = 1.0 + sides * dims["tokens"] * tile_rows / 2.0 / dims["pairs"]
    scores = whole * dims["pairs"] * dims["heads"]
    biased = np.where(dims["bias_buckets"] > 0.0, scores, 0.0)
    adding = np.zeros(len(scores))
    widths = dims["head_dim"] + dims["value_dim"]
    if way == "bwd":
        widths = widths + QUERY_GRADIENTS * dims["head_dim"]
    elif way == "bwd_bias":
        biased, widths = biased / dims["heads"], 2.0 * widths
        adding = _adding_us(dims, device)
    instructions = scores * _C.table("score_instructions")[way] + biased * _C.bias_instructions
    instructions = instructions / issued_per_us(device)
    specials = (scores * _C.score_specials + biased * _C.bias_specials) / special_per_us(device)
    loads = scores * widths * group.item_bytes / tile_rows / l2_bytes_per_us(device)
    parts = {
        "products": whole * flop / (peak * device.gemm_peak_frac),
        "elementwise": instructions + specials,
        "cache": loads,
    }
    crowded = np.where(_sums_bytes(dims, way, tile_rows) > _most_sums(device), _C.crowded_frac, 1.0)
    in_turn = (parts["products"] + parts["elementwise"]) / (_C.serial_frac * crowded)
    blocks = (dims["tokens"] + dims["sequences"] * tile_rows / 2.0) / _C.start_rows
    starts = _C.program_us * blocks * dims["heads"] * dims["head_dim"] / _C.head_dim
    serial = np.maximum(in_turn, loads) + starts / device.sm_count
    pipelined = np.maximum.reduce(list(parts.values())) / _C.pipelined_frac
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, bound_us(group.moved_bytes, device))
    compute = np.where(overlapped, pipelined, serial) + adding
    return Analysis(
        bound_us=bound,
        kernel_us=_C.attention_start_us + np.maximum(np.maximum(compute, memory), bound),
        shares={
            "compute": parts["products"] + parts["elementwise"] + adding,
            "cache": loads,
            "memory": memory,
        },
        flop=flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={"peak_us": flop / peak},
    )


def _sums_bytes(dims: Dims, way: str, tile_rows: Floats) -> Floats:
    """What a program adds up on chip: its rows of the output, or of the gradients of keys and
    values and half as many of those of queries."""
    widths = dims["value_dim"]
    if way == "bwd":
        widths = widths + dims["head_dim"] + dims["head_dim"] / 2.0
    return np.asarray(item_bytes(["fp32"]) * tile_rows * widths)


def _most_sums(device: Device) -> float:
    """Bytes of sums from which on a program takes more than half of the registers."""
    return _C.table("register_bytes")[device.target] / 2.0


def _adding_us(dims: Dims, device: Device) -> Floats:
    """Additions to the buckets of a bias by time, one per pair: warps queue for the lines of their
    table, on which the pairs are taken to be spread evenly."""
    streaming = coefficients("gpu.streaming")
    lines = np.maximum(
        np.ceil(dims["bias_buckets"] * item_bytes(["fp32"]) / streaming.line_bytes), 1.0
    )
    warps = dims["pairs"] / streaming.table("lanes")[device.target]
    return np.asarray(warps * streaming.table("atomic_line_us")[device.target] / lines)


@analyse_by_group
def analyse_convolution(group: Group, device: Device) -> Analysis:
    """The equivalent matrix product against the bytes of input, weights and output; fp32 on tensor
    cores: after what lays images and weights out, and before what lays the result back."""
    dims, flop = group.dims, group.flop
    peak = matrix_flop_per_us(device, group.dtypes)
    vector = vector_flop_per_us(device)
    on_matrix = has_matrix_units(device, group.dtypes)
    area = kernel_area(dims)
    saves = np.where(
        area > _C.window, _C.large_kernel_saves, np.where(area == _C.window, _C.winograd_saves, 1.0)
    )
    winograd = (
        (area == _C.window)
        & (stride(dims) == 1.0)
        & (dims["dilation"] <= 1.0)
        & (dims["depth"] == 0.0)
        & ~on_matrix
        & (dims["groups"] == 1.0)
        & (group.direction != "bwd_weight")
    )
    is_forward = group.direction == "fwd"
    implicit = _C.table("implicit_frac").get(device.target, _C.usual_implicit_frac)
    m, n, k = _product(dims, group.direction, flop)
    in_tf32 = np.array([dtype == "tf32" for dtype in group.dtypes])
    full_rate = np.maximum(peak, _C.tf32_over_fp32 * vector)
    is_direct = peak / vector < _C.tf32_direct_below
    reached_frac, filled_frac, passes = _tf32(dims, group.direction, is_direct)
    reached = np.minimum(peak, full_rate * reached_frac)
    tiling = fastest_of_either(
        dims["groups"],
        m,
        n,
        k,
        group.item_bytes,
        np.where(in_tf32, reached / filled_frac, peak * device.gemm_peak_frac * implicit),
        device,
        on_matrix,
    )
    transformed = np.full(len(flop), np.inf)
    if winograd.any():
        made = output_sides(dims) if is_forward else input_sides(dims)
        channels = (dims["in_channels"], dims["out_channels"])
        transformed = winograd_us(
            group,
            (dims["batch"], *made),
            channels if is_forward else channels[::-1],
            peak * device.gemm_peak_frac,
            device,
        )
    usual = np.where(winograd, np.minimum(tiling.time_us, transformed), tiling.time_us)
    usual = np.where(in_tf32, np.maximum(flop / reached, tiling.time_us), usual)
    memory = transfer_us(group.moved_bytes, device)
    memory = np.where(in_tf32, passes * memory, memory)
    depth = np.maximum(dims["depth"], 1.0)
    is_depthwise = (dims["groups"] > 1.0) & (dims["groups"] * depth == dims["in_channels"])
    sides = np.sqrt(area)
    is_compiled = np.isin(sides, _COMPILED_WINDOWS) & (dims["depth"] == 0.0) & ~is_direct
    each = np.where(is_compiled, _C.depthwise_clocks, _C.depthwise_other_clocks)
    taps = each + _C.depthwise_tap_clocks * area * depth
    outputs = dims["batch"] * dims["out_channels"] * output_area(dims)
    alone = taps * outputs / (device.sm_count * device.boost_mhz)
    if group.direction == "bwd_weight":
        alone = alone * _C.depthwise_weight_gradient
    compute = np.where(is_depthwise, alone, usual)
    memory = np.where(
        is_depthwise,
        group.moved_bytes / (_C.depthwise_memory_frac * hbm_bytes_per_us(device)),
        memory,
    )
    bound = np.maximum(flop / (saves * peak), bound_us(group.moved_bytes, device))
    kernel = np.maximum(np.maximum(compute, memory), bound)
    is_laid_out = in_tf32 & ~is_direct & (dims["channels_last"] <= 0.0) & ~is_depthwise
    starts = 1.0 + 2.0 * is_laid_out
    kernel = kernel + np.where(in_tf32, _C.tf32_start_us * starts, 0.0)
    if group.direction != "bwd_weight" and is_laid_out.any():
        parts = laid_out(group, (m, n, k), device)
        compute = np.where(is_laid_out, parts.product_us, compute)
        memory = np.where(is_laid_out, parts.layouts_us, memory)
        kernel = np.where(is_laid_out, np.maximum(compute + memory, bound), kernel)
    return Analysis(
        bound_us=bound,
        kernel_us=kernel,
        shares={"compute": compute, "memory": memory, "cache": tiling.l2_us},
        flop=flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={
            "peak_us": flop / peak,
            "serial_us": tiling.serial_us,
            "blocks_per_sm": tiling.blocks_per_sm,
            "filled_frac": tiling.filled_frac,
            "wave_frac": tiling.wave_frac,
            "splits": tiling.splits,
        },
    )


def _tf32(
    dims: Dims, direction: str, is_direct: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Of fp32 images on tensor cores: the share of the peak, what few channels, which fill few
    lanes, leave of it, and passes over input and output.

    `is_direct`: tensor cores are hardly faster than vector units, so
    that forward passes take channels first as they come, instead of exchanging their order. What
    lies channels last moves once.
    """
    is_forward = direction == "fwd"
    inputs = dims["in_channels"] / np.maximum(dims["depth"], 1.0) / dims["groups"]
    outputs = dims["out_channels"] / dims["groups"]
    summed, made = (inputs, outputs) if is_forward else (outputs, inputs)
    filled = summed / (summed + _C.tf32_summed_channels) * made / (made + _C.tf32_made_channels)
    best = np.where(is_direct, _C.tf32_direct_frac, _C.tf32_frac) if is_forward else _C.tf32_frac
    best = np.where(dims["channels_last"] > 0.0, np.minimum(best * _C.tf32_last_gain, 1.0), best)
    reached = best * filled * (1.0 if is_forward else _C.tf32_gradient)
    reached = reached * np.where(dims["depth"] > 0.0, _C.tf32_volume, 1.0)
    reached = reached * np.where(stride(dims) > 1.0, _C.tf32_strided, 1.0)
    reached = reached * np.where(dims["dilation"] > 1.0, _C.tf32_dilated, 1.0)
    first = _C.direct_passes if is_forward else _C.layout_passes
    return reached, filled, np.where(dims["channels_last"] > 0.0, 1.0, first)


def _product(dims: Dims, direction: str, flop: Floats) -> tuple[Floats, Floats, Floats]:
    """(m, n, k) of the product per group that the convolution is."""
    groups, area = dims["groups"], kernel_area(dims)
    inputs, outputs = dims["in_channels"] / groups, dims["out_channels"] / groups
    if direction == "bwd_weight":
        m, n = outputs, inputs * area
    elif direction == "bwd_data":
        m, n = dims["batch"] * input_area(dims), inputs
    else:
        m, n = dims["batch"] * output_area(dims), outputs
    return m, n, flop / (2.0 * groups * m * n)


@analyse_by_group
def analyse_pooling(group: Group, device: Device) -> Analysis:
    """The larger of bytes at the memory's rate and work on outputs and their windows."""
    dims, is_forward = group.dims, group.direction == "fwd"
    memory = group.moved_bytes / stream_bytes_per_us(device)
    threads = dims["outputs"] if is_forward else dims["elements"]
    windows = np.maximum(1.0, dims["kernel_size"] ** 2) / _C.window
    volume = np.where(dims["sides"] > 2.0, _C.table("volume_outputs")[group.op], 0.0)
    work = _C.output_share + volume + (1.0 - _C.output_share) * windows
    way = f"{group.op}_{group.direction}"
    each = _C.table("clocks")
    clocks = each.get(f"{device.target}_{way}", each[way]) * threads * (work if is_forward else 1.0)
    compute = clocks / (device.sm_count * device.boost_mhz)
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, compute, bound]) + _C.pooling_start_us,
        shares={"memory": memory, "compute": compute},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )
