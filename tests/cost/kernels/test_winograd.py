"""Convolutions of 3 x 3 that transform tiles of the image."""

import numpy as np
import pytest

from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.cost.gpu.convolution import analyse_convolution
from perfmodel.cost.gpu.winograd import winograd_us
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows

P4 = device("p4")
PEAK = P4.fp32_tflop_per_s * 1e6


def rows_of(batch: int, channels: int, side: int) -> Rows:
    dims = {"in_channels": channels, "out_channels": channels, "input_size": side}
    return Rows.of([{"op": "conv2d", "kernel_size": 3, "padding": 1, "batch": batch, **dims}])


def transformed_us(batch: int, channels: int, side: int, rate: float = PEAK) -> float:
    group = next(iter(groups_of(rows_of(batch, channels, side))))
    images = tuple(np.array([float(each)]) for each in (batch, side, side))
    read_and_made = np.full((2, 1), float(channels))
    return float(winograd_us(group, images, tuple(read_and_made), np.array([rate]), P4)[0])


def took_us(batch: int, channels: int, side: int) -> float:
    return float(analyse_convolution(rows_of(batch, channels, side), P4).kernel_us[0])


def test_transforming_the_weights_takes_as_long_for_one_image_as_for_many() -> None:
    """Per pair of channels 9 weights are read and 16 points written, at a fifth of the rate."""
    weights_us = 4.0 * 1024**2 * (9 + 16) / (0.2 * P4.stream_gb_per_s * 1e3)
    fast = 1e6 * PEAK
    assert transformed_us(1, 1024, 8, fast) == pytest.approx(weights_us, rel=0.1)
    assert transformed_us(2, 1024, 8, fast) == pytest.approx(weights_us, rel=0.1)


def test_few_images_are_not_transformed_many_take_less_than_their_multiplications() -> None:
    flop = 2.0 * 9 * 512**2 * 28**2
    assert took_us(1, 1024, 8) < transformed_us(1, 1024, 8)
    assert 64 * flop / (4.0 * PEAK) < took_us(64, 512, 28) < 64 * flop / PEAK


def test_tiles_beyond_the_edge_are_computed_whole() -> None:
    """Tiles of 4 x 4 or blocks of as many outputs: 5 x 5 takes as many as 8 x 8."""
    slow = 1e-3 * PEAK
    assert transformed_us(64, 128, 5, slow) == pytest.approx(transformed_us(64, 128, 8, slow), 0.01)
