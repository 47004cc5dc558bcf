"""Physics of convolutions and pooling."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu import rates
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.matmul import fastest, overlapped
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area, output_area

_C, _KERNEL = coefficients("gpu.convolution"), coefficients("gpu.kernel")
_VECTOR_BYTES = coefficients("gpu.streaming").vector_bytes
_TOLD = ("serial_us", "blocks_per_sm", "filled_frac", "wave_frac", "splits")
_SMALLEST = float(np.min(coefficients("gpu.matmul").tile_sides))


def stride(dims: Dims) -> Floats:
    """The larger of a convolution's strides."""
    return np.maximum(dims["stride"], np.maximum(dims["stride_h"], dims["stride_w"]))


@analyse_by_group
def analyse_convolution(group: Group, device: Device) -> Analysis:
    """The equivalent matrix product beside the bytes of input, weights and output.

    Matrix units take images channels last, whole vectors of channels (see `_laid_out`); forward, no
    block shares its outputs. One channel per group: clocks per output and tap. On vector units
    fewer multiplications (Winograd) lower the bound; what they gain is learned.
    """
    dims, flop, moved = group.dims, group.flop, group.moved_bytes
    peak, is_forward = rates.matrix_flop_per_us(device, group.dtypes), group.direction == "fwd"
    is_first = (device.target == "cuda") & (dims["channels_last"] <= 0.0)
    on_matrix = rates.has_matrix_units(device, group.dtypes)
    vector = _VECTOR_BYTES / group.item_bytes
    channels = dims["in_channels"] / _depth(dims)
    in_tf32 = rates.of_dtypes(group.dtypes, "tf32".__eq__)
    # Too few for a vector are taken as they come, by vector units.
    is_few = on_matrix & in_tf32 & is_forward & is_first & (channels < vector)
    implicit = _C["implicit_frac"].get(device.target, _C.usual_implicit_frac)
    mma = np.where(in_tf32, rates.of_generation(device, _C["mma_frac"], 1.0), 1.0)
    volume = np.where((dims["depth"] > 0.0) & (~on_matrix | (not is_forward)), _C.volume, 1.0)
    reached = np.where(is_few, _C.few_frac * mma, device.gemm_peak_frac * implicit * volume)
    rate = np.minimum(peak * reached, rates.sustained_flop_per_us(device, group.dtypes, peak))
    product = _product(dims, group.direction, np.where(on_matrix & ~is_few, vector, 1.0))
    splits = 1.0 if is_forward else np.inf
    tiling = fastest(*product, group.item_bytes, rate, device, on_matrix, splits)
    compute, memory = tiling.time_us, rates.transfer_us(moved, device)
    busy, laying = overlapped(compute, memory, group.dtypes, device), np.zeros(len(memory))
    is_depthwise = (dims["groups"] > 1.0) & (dims["groups"] == channels)
    is_laid_out = on_matrix & is_first & ~is_depthwise & ~is_few
    if is_laid_out.any():
        chosen = _laid_out(group, compute, compute / mma, in_tf32, device)
        compute, busy, laying = np.where(is_laid_out, chosen, (compute, busy, laying))
    busy = np.where(is_depthwise, _depthwise_us(dims, moved, device), busy)
    is_dense = (stride(dims) == 1.0) & (dims["dilation"] <= 1.0) & (kernel_area(dims) >= _C.window)
    saves = np.where(is_dense & ~on_matrix, _C.winograd_saves, 1.0)
    bound = np.maximum(flop / (saves * peak), rates.bound_us(moved, device))
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(busy, bound) + on_matrix * _KERNEL.start_us + laying,
        shares={"compute": compute, "memory": memory + laying, "cache": tiling.l2_us},
        features={"peak_us": flop / peak, **{name: getattr(tiling, name) for name in _TOLD}},
    )


def _laid_out(group: Group, own_us: Floats, mma_us: Floats, tf32: Mask, device: Device) -> Floats:
    """What multiplying takes, that beside memory, and layouts `[3, n]`, of images channels first.

    Kernels of their own lay them out channels last, and the result back; or forward in TF32 the
    product writes channels first itself, by instructions that newer chips run slower, where that
    is faster. Where every pixel is multiplied by itself, the product takes them as they lie.
    """
    dims, starts_us = group.dims, 2.0 * _KERNEL.start_us
    memory = rates.transfer_us(group.moved_bytes, device)
    both = _C.layout_passes * memory + starts_us
    is_product = kernel_area(dims) * _depth(dims) * stride(dims) * dims["groups"] == 1.0
    input_us = rates.transfer_us(group.read_bytes, device)
    read = ~is_product * (_C.layout_passes * input_us + starts_us)
    last, first = (overlapped(us, memory, group.dtypes, device) for us in (own_us, mma_us))
    writes = (is_product | tf32) & (group.direction == "fwd") & (first + read < last + both)
    return np.where(writes, (mma_us, first, read), (own_us, last, both))


def _depth(dims: Dims) -> Floats:
    """Of the window in three dimensions, which `in_channels` contain."""
    return np.maximum(dims["depth"], 1.0)


def _depthwise_us(dims: Dims, moved_bytes: Floats, device: Device) -> Floats:
    """Clocks per output and tap by the layout and the window, or bytes at a share of the rate."""
    area, each = kernel_area(dims), _C["depthwise_tap_clocks"]
    is_last, is_wide = dims["channels_last"] > 0.0, area > _C.depthwise_window
    last = np.where(is_wide, each["last_wide"], 0.0)  # small windows: no cost per tap was seen
    tap = np.where(is_last, last, np.where(is_wide, each["first_wide"], each["first"]))
    clocks = _C.depthwise_clocks + tap * area * _depth(dims)
    outputs = dims["batch"] * dims["out_channels"] * output_area(dims)
    by_taps = clocks * outputs / (device.sm_count * device.boost_mhz)
    streamed = moved_bytes / (_C.depthwise_memory_frac * rates.hbm_bytes_per_us(device))
    return np.maximum(by_taps, streamed)


def _product(dims: Dims, direction: str, lanes: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(b, m, n, k) of the products that the convolution is, one per group; on matrix units, which
    take channels in whole `lanes`, one per so many groups that they fill the smallest tile."""
    area, depth, groups = kernel_area(dims), _depth(dims), dims["groups"]
    fewest = np.minimum(dims["in_channels"] / depth, dims["out_channels"]) / groups
    groups = np.where(lanes > 1.0, groups / np.clip(_SMALLEST / fewest, 1.0, groups), groups)
    inputs = np.ceil(dims["in_channels"] / depth / groups / lanes) * lanes * depth
    outputs = np.ceil(dims["out_channels"] / groups / lanes) * lanes
    made, given = dims["batch"] * output_area(dims), dims["batch"] * input_area(dims)
    if direction == "bwd_weight":
        return groups, outputs, inputs * area, made
    if direction == "bwd_data":
        return groups, given, inputs, outputs * area * made / given
    return groups, made, outputs, inputs * area


@analyse_by_group
def analyse_pooling(group: Group, device: Device) -> Analysis:
    """The larger of bytes at the memory's rate and work on outputs and their windows."""
    dims, is_forward = group.dims, group.direction == "fwd"
    memory = group.moved_bytes / rates.stream_bytes_per_us(device)
    threads = dims["outputs"] if is_forward else dims["elements"]
    windows = np.maximum(1.0, dims["kernel_size"] ** 2) / _C.window
    work = _C.output_share + (1.0 - _C.output_share) * windows if is_forward else 1.0
    each, way = _C["clocks"], group.direction
    clocks = each.get(f"{device.target}_{way}", each.get(f"{group.op}_{way}", each.get(way, 0.0)))
    compute = clocks * threads * work / (device.sm_count * device.boost_mhz)
    bound = rates.bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, compute, bound]) + _KERNEL.start_us,
        shares={"memory": memory, "compute": compute},
    )
