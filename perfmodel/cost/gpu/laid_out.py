"""fp32 images that lie channels first, convolved by tensor cores, which take them channels last.

Kernels one after another: one lays the image out channels last, one the weights, one multiplies,
and one lays the result back, unless the product writes channels first. Some need no layout:
windows of one pixel are a plain matrix product, and images of few channels (those of a camera)
are convolved by vector units as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.gpu.matmul import fastest_of_either
from perfmodel.cost.gpu.rates import (
    has_matrix_units,
    matrix_flop_per_us,
    stream_bytes_per_us,
    transfer_us,
)
from perfmodel.hardware import Device
from perfmodel.hardware.generations import nearest_known
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area, output_area

_C = coefficients("gpu.convolution")
_FMA_FLOP = 2.0


@dataclass(frozen=True)
class LaidOut:
    """Per row: the product's kernel and the kernels that lay out, in microseconds."""

    product_us: Floats
    layouts_us: Floats


@dataclass(frozen=True)
class _Images:
    """Per row: elements read and made, their channels, and those of one group."""

    read: Floats
    made: Floats
    read_channels: Floats
    made_channels: Floats
    weights: Floats
    summed: Floats
    per_group: Floats


def laid_out(group: Group, product: tuple[Floats, Floats, Floats], device: Device) -> LaidOut:
    """Forward, and gradients by the data. `product`: (m, n, k) of the matrix product per group."""
    dims, flop, way = group.dims, group.flop, group.direction
    images = _images(dims, way)
    peak = matrix_flop_per_us(device, group.dtypes)
    size = group.item_bytes
    memory = transfer_us(size * (images.read + images.made + images.weights), device)
    lanes = _lanes(images, dims)
    reached = peak * np.minimum(_C.tf32_last_frac * lanes, 1.0)
    serial = _C.summed_us * np.minimum(product[2], _C.most_summed)
    slowest = np.maximum(memory, serial)
    time = np.maximum(flop / reached, slowest) + _C.tf32_start_us
    back = _layout_us(images.made, images.made_channels, size, device)
    either = np.maximum(images.read_channels, images.made_channels)
    layouts = _layout_us(images.read, images.read_channels, size, device)
    layouts = layouts + _layout_us(images.weights, either, size, device)
    if way == "bwd_data":
        layouts = layouts + back
    else:
        reached = peak * np.minimum(_C.tf32_first_frac * lanes, 1.0)
        at_once = np.maximum(flop / reached, slowest) + _C.tf32_start_us
        writes_first = at_once < time + back
        time = np.where(writes_first, at_once, time)
        layouts = layouts + np.where(writes_first, 0.0, back)
    slow = _without_tensor_cores_us(group, images, device)
    is_plain = _is_plain(dims)
    is_slow = ~is_plain & np.where(way == "bwd_data", slow > time + layouts, slow > 0.0)
    time = np.where(is_plain, _plain_us(group, product, peak, device), time)
    time = np.where(is_slow, slow, time)
    layouts = np.where(is_plain | is_slow, _C.tf32_start_us, layouts)
    return LaidOut(np.maximum(time, memory), layouts)


def _images(dims: Dims, way: str) -> _Images:
    """What is read and made; slices of a volume are counted once, not for each weight in depth."""
    depth, groups = _depth(dims), dims["groups"]
    channels, outputs = dims["in_channels"] / depth, dims["out_channels"]
    slices = np.where(dims["depth"] > 0.0, stride(dims), 1.0)
    image = dims["batch"] * channels * input_area(dims) * slices
    result = dims["batch"] * outputs * output_area(dims)
    weights = outputs * dims["in_channels"] / groups * kernel_area(dims)
    forward = (image, result, channels, outputs)
    sides = forward if way == "fwd" else (result, image, outputs, channels)
    return _Images(*sides, weights, sides[2] / groups, sides[3] / groups)


def _lanes(images: _Images, dims: Dims) -> Floats:
    """What few channels, depth and strides leave of the rate."""
    summed = images.summed / (images.summed + _C.tf32_summed_channels)
    made = images.per_group / (images.per_group + _C.laid_made_channels)
    return summed * made * _steps(dims)


def _steps(dims: Dims) -> Floats:
    in_depth = np.where(dims["depth"] > 0.0, _C.tf32_volume, 1.0)
    return in_depth * np.where(stride(dims) > 1.0, _C.tf32_strided, 1.0)


def _layout_us(elements: Floats, channels: Floats, item_bytes: Floats, device: Device) -> Floats:
    """A start, and reading and writing once; few channels fill few of the bytes of a line."""
    rate = _C.layout_frac * stream_bytes_per_us(device)
    lines = 1.0 + (_C.layout_channels / channels) * np.sqrt(_C.layout_channels / channels)
    return _C.tf32_start_us + 2.0 * item_bytes * elements * lines / rate


def _is_plain(dims: Dims) -> NDArray[np.bool_]:
    is_pixel = (kernel_area(dims) == 1.0) & (dims["depth"] <= 1.0)
    return np.asarray(is_pixel & (stride(dims) == 1.0) & (dims["groups"] == 1.0))


def _plain_us(
    group: Group, product: tuple[Floats, Floats, Floats], peak: Floats, device: Device
) -> Floats:
    """A matrix product of pixels and channels for each image, as they lie."""
    rate, on_matrix = peak * _C.pixel_frac, has_matrix_units(device, group.dtypes)
    (m, n, k), images = product, group.dims["batch"]
    return fastest_of_either(
        group.dims["groups"] * images, m / images, n, k, group.item_bytes, rate, device, on_matrix
    ).time_us


def _without_tensor_cores_us(group: Group, images: _Images, device: Device) -> Floats:
    """Where no tensor core is used, or where it is no help, else 0."""
    if group.direction == "fwd":
        return _few_channels_us(group, images, device)
    return np.maximum(_unaligned_us(group, images, device), _by_group_us(group, images, device))


def _few_channels_us(group: Group, images: _Images, device: Device) -> Floats:
    """Few channels, and a window that does not make up for them."""
    dims = group.dims
    summed = images.summed * kernel_area(dims) * _depth(dims)
    is_short = (summed < _C.vector_summed) | (dims["depth"] > 0.0)
    filled = summed / (summed + _C.vector_half_summed)
    rate = _fp32_rate(images, device) * filled * _steps(dims)
    return np.where((images.summed < _C.vector_channels) & is_short, group.flop / rate, 0.0)


def _fp32_rate(images: _Images, device: Device) -> Floats:
    """FLOP per microsecond of the vector units by the channels made."""
    made = images.per_group / (images.per_group + _C.tf32_made_channels)
    return _FMA_FLOP * _C.vector_fma_per_clock * device.sm_count * device.boost_mhz * made


def _unaligned_us(group: Group, images: _Images, device: Device) -> Floats:
    """Of a gradient summed over channels that do not fill the 16 bytes which tensor cores read at
    once (the three of an image): clocks per element, whatever is summed; else 0."""
    dims = group.dims
    is_unaligned = (dims["groups"] == 1.0) & (dims["out_channels"] % _C.tf32_aligned_channels > 0.0)
    clocks = _C.table("unaligned_clocks")
    generation = nearest_known(device.architecture, clocks)
    each = _C.usual_unaligned_clocks if generation is None else clocks[generation]
    return np.where(is_unaligned, each * images.made / (device.sm_count * device.boost_mhz), 0.0)


def _by_group_us(group: Group, images: _Images, device: Device) -> Floats:
    """Gradients of groups in volumes: vector units multiply group after group, with the zeros that
    strides leave; else 0."""
    dims = group.dims
    is_grouped = (dims["depth"] > 0.0) & (dims["groups"] > 1.0)
    with_zeros = group.flop * stride(dims) ** 3
    return np.where(is_grouped, with_zeros / _fp32_rate(images, device), 0.0)


def _depth(dims: Dims) -> Floats:
    return np.maximum(dims["depth"], 1.0)


def stride(dims: Dims) -> Floats:
    """The larger of a convolution's strides."""
    return np.maximum(dims["stride"], np.maximum(dims["stride_h"], dims["stride_w"]))
