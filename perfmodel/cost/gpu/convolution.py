"""Physics of convolutions and pooling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.matmul import fastest
from perfmodel.cost.gpu.rates import (
    bound_us,
    has_matrix_units,
    hbm_bytes_per_us,
    matrix_flop_per_us,
    stream_bytes_per_us,
    transfer_us,
    vector_flop_per_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area, output_area

_C, _KERNEL = coefficients("gpu.convolution"), coefficients("gpu.kernel")


def stride(dims: Dims) -> Floats:
    """The larger of a convolution's strides."""
    return np.maximum(dims["stride"], np.maximum(dims["stride_h"], dims["stride_w"]))


@analyse_by_group
def analyse_convolution(group: Group, device: Device) -> Analysis:
    """The equivalent matrix product against the bytes of input, weights and output.

    fp32 images that lie channels first move more than once where tensor cores take channels last.
    One channel per group: clocks per output and tap. Fewer multiplications (Winograd) lower the
    bound; what they gain is learned.
    """
    dims, flop, area = group.dims, group.flop, kernel_area(group.dims)
    peak = matrix_flop_per_us(device, group.dtypes)
    on_matrix = has_matrix_units(device, group.dtypes)
    is_direct = peak / vector_flop_per_us(device) < _C.tf32_direct_below
    in_tf32 = np.array([dtype == "tf32" for dtype in group.dtypes])
    reached_frac, filled_frac, passes = _tf32(dims, group.direction, is_direct)
    fullest = np.maximum(peak, _C.tf32_over_fp32 * vector_flop_per_us(device))
    reached = np.minimum(peak, fullest * reached_frac)
    implicit = _C.table("implicit_frac").get(device.target, _C.usual_implicit_frac)
    tiling = fastest(
        dims["groups"],
        *_product(dims, group.direction, flop),
        group.item_bytes,
        np.where(in_tf32, reached / filled_frac, peak * device.gemm_peak_frac * implicit),
        device,
        on_matrix,
    )
    compute = np.where(in_tf32, np.maximum(flop / reached, tiling.time_us), tiling.time_us)
    memory = np.where(in_tf32, passes, 1.0) * transfer_us(group.moved_bytes, device)
    depth = np.maximum(dims["depth"], 1.0)
    is_depthwise = (dims["groups"] > 1.0) & (dims["groups"] * depth == dims["in_channels"])
    taps = _C.depthwise_clocks + _C.depthwise_tap_clocks * area * depth
    outputs = dims["batch"] * dims["out_channels"] * output_area(dims)
    by_taps = taps * outputs / (device.sm_count * device.boost_mhz)
    compute = np.where(is_depthwise, by_taps, compute)
    streamed = group.moved_bytes / (_C.depthwise_memory_frac * hbm_bytes_per_us(device))
    memory = np.where(is_depthwise, streamed, memory)
    saves = np.where(area >= _C.window, _C.winograd_saves, 1.0)
    bound = np.maximum(flop / (saves * peak), bound_us(group.moved_bytes, device))
    is_laid_out = in_tf32 & ~is_direct & (dims["channels_last"] <= 0.0) & ~is_depthwise
    # Two more kernels lay the image out channels last and the result back.
    start_us = np.where(in_tf32, _KERNEL.start_us * (1.0 + 2.0 * is_laid_out), 0.0)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([compute, memory, bound]) + start_us,
        shares={"compute": compute, "memory": memory, "cache": tiling.l2_us},
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
    work = _C.output_share + (1.0 - _C.output_share) * windows if is_forward else 1.0
    each, way = _C.table("clocks"), group.direction
    clocks = each.get(f"{device.target}_{way}", each.get(f"{group.op}_{way}", each.get(way, 0.0)))
    compute = clocks * threads * work / (device.sm_count * device.boost_mhz)
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, compute, bound]) + _KERNEL.start_us,
        shares={"memory": memory, "compute": compute},
    )
