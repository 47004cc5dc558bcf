"""Convolutions of 3 x 3 on vector units that transform tiles of the image (Lavin and Gray 2016).

Fused, F(2x2, 3x3): a kernel transforms the weights, which takes as long for one image as for many,
and one does the rest, on blocks of outputs of one of a few sizes. In parts, F(4x4, 3x3): image and
weights are written out transformed, a product for each of the 36 points of a tile follows, and a
kernel transforms the result back. Names of kernels in measurement tables tell which one ran; the
library is taken to choose the faster.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.gpu.matmul import fastest_of_either
from perfmodel.cost.gpu.rates import transfer_us
from perfmodel.hardware import Device

_C = coefficients("gpu.convolution")
_WINDOW = 3
_FUSED, _IN_PARTS = 2, 4
"""Outputs along a side of a tile."""
_BLOCKS = ((1, 4, 8), (2, 4, 4), (2, 2, 8))
"""Images, rows and columns of outputs that a block of the fused kernel makes: `tile148`, `tile244`
and `tile228` in the names of cuDNN's."""


def winograd_us(
    group: Group,
    images: tuple[Floats, Floats, Floats],
    channels: tuple[Floats, Floats],
    rate_flop_per_us: Floats,
    device: Device,
) -> Floats:
    """Microseconds of the faster way, but for what image and result take to move.

    `images`: how many are made, and their rows and columns; `channels` read and made;
    `rate_flop_per_us` is what plain products reach.
    """
    count, rows, columns = images
    item, (read, made) = group.item_bytes, channels
    blocks = [
        np.ceil(count / n) * np.ceil(rows / h) * np.ceil(columns / w) * n * h * w
        for n, h, w in _BLOCKS
    ]

    def product_us(side: int, tiles: Floats, rate: Floats) -> Floats:
        points = np.full(len(tiles), float(_points(side)))
        on_vector_units = np.zeros(len(tiles), bool)
        tiling = fastest_of_either(points, tiles, made, read, item, rate, device, on_vector_units)
        return tiling.time_us

    def weights_us(side: int) -> Floats:
        moved = read * made * (_WINDOW**2 + _points(side)) * item
        return transfer_us(moved, device) / _C.winograd_weights_frac

    fused = product_us(
        _FUSED, np.min(blocks, axis=0) / _FUSED**2, rate_flop_per_us * _C.winograd_fused_frac
    )
    tiles = count * np.ceil(rows / _IN_PARTS) * np.ceil(columns / _IN_PARTS)
    moved = (count * rows * columns + tiles * _points(_IN_PARTS)) * (read + made) * item
    in_parts = product_us(_IN_PARTS, tiles, rate_flop_per_us)
    in_parts = in_parts + transfer_us(moved, device) / _C.winograd_images_frac
    return np.minimum(fused + weights_us(_FUSED), in_parts + weights_us(_IN_PARTS))


def _points(side: int) -> int:
    return (side + _WINDOW - 1) ** 2
