"""Physics of convolutions: implicit matrix products, Winograd, and depthwise kernels."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import matrix_flop_per_us, vector_flop_per_us
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.kernels.gpu.tiles import fastest_of_either
from perfmodel.ops.spec import Dims, Floats
from perfmodel.ops.vocabulary.convolution import input_area, kernel_area, output_area

_WINOGRAD_SAVES = 2.25
"""Multiplications saved by F(2x2, 3x3). Source: Lavin and Gray 2016, section 4.1."""
_LARGE_KERNEL_SAVES = 4.0
"""As much as Fourier transforms have been seen to save for windows above 3 x 3."""
_WINOGRAD_FRAC = 0.7
"""What its transforms leave of the saving, against an implicit product at its best."""
_DEPTHWISE_FRAC = 0.15
"""Share of the vector units' peak that kernels with one channel per group reach."""
_USUAL_IMPLICIT_FRAC = 0.9
_IMPLICIT_FRAC = {"rocm": 0.45}
"""Of a matrix product's rate. Source: `rocm` of a ResNet trace on MI300X, bf16, batch 10 (not held
out)."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """The equivalent matrix product against the bytes of input, weights and output."""
    dims, flop = group.dims, group.flop
    peak = matrix_flop_per_us(device, group.dtypes)
    vector = vector_flop_per_us(device)
    on_matrix = peak > 2.5 * vector
    area = kernel_area(dims)
    saves = np.where(area > 9.0, _LARGE_KERNEL_SAVES, np.where(area == 9.0, _WINOGRAD_SAVES, 1.0))
    winograd = (
        (area == 9.0) & (_stride(dims) == 1.0) & ~on_matrix & (group.direction != "bwd_weight")
    )
    implicit = _IMPLICIT_FRAC.get(device.target, _USUAL_IMPLICIT_FRAC)
    m, n, k = _product(dims, group.direction, flop)
    tiling = fastest_of_either(
        dims["groups"],
        m,
        n,
        k,
        group.item_bytes,
        peak * device.gemm_peak_frac * implicit,
        device,
        on_matrix,
    )
    usual = tiling.time_us / np.where(winograd, _WINOGRAD_SAVES * _WINOGRAD_FRAC, 1.0)
    is_depthwise = (dims["groups"] > 1.0) & (dims["groups"] == dims["in_channels"])
    compute = np.where(is_depthwise, flop / (_DEPTHWISE_FRAC * vector), usual)
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / (saves * peak), bound_us(group.moved_bytes, device))
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(np.maximum(compute, memory), bound),
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


def _stride(dims: Dims) -> Floats:
    return np.maximum(dims["stride"], np.maximum(dims["stride_h"], dims["stride_w"]))


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
