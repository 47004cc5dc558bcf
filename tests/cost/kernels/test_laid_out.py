"""fp32 images on tensor cores: what is laid out, multiplied and laid back, one after another."""

import csv
from pathlib import Path

import pytest

from perfmodel.cost.gpu.convolution import analyse_convolution
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows

TABLE = Path(__file__).parents[3] / "traces" / "h200" / "convolutions.csv"
H200 = device("h200-sxm")
IMAGE = {"op": "conv2d", "dtype": "tf32", "batch": 64, "input_size": 128, "padding": 1}


def took_us(**dims: float | str) -> float:
    row = {**IMAGE, "kernel_size": 3, "in_channels": 64, "out_channels": 64, **dims}
    return float(analyse_convolution(Rows.of([row]), H200).kernel_us[0])


def test_layouts_and_product_add_up() -> None:
    image = 64 * 64 * 128**2
    each = 8.0 * image * (1.0 + (7.6 / 64) ** 1.5) / (0.83 * H200.stream_gb_per_s * 1e3)
    weights = 8.0 * 64 * 64 * 9 * (1.0 + (7.6 / 64) ** 1.5) / (0.83 * H200.stream_gb_per_s * 1e3)
    share = 64 / (64 + 7.7) * 64 / (64 + 118.0)
    flop = 2.0 * image * 64 * 9
    writes_last = flop / (1.34 * share * H200.tf32_tflop_per_s * 1e6) + each + 2.0
    writes_first = flop / (0.80 * share * H200.tf32_tflop_per_s * 1e6)
    expected = each + weights + 4.0 + 2.0 + min(writes_last, writes_first)
    assert took_us() == pytest.approx(expected, rel=1e-9)


def test_channels_last_need_no_layout() -> None:
    assert took_us(channels_last=1) < 0.7 * took_us()


def test_pixels_are_a_plain_product() -> None:
    moved_us = 2 * 4.0 * 64 * 64 * 128**2 / (H200.stream_gb_per_s * 1e3)
    assert took_us(kernel_size=1, padding=0) < 1.5 * moved_us


def test_few_channels_are_left_to_vector_units() -> None:
    few, many = took_us(in_channels=8), took_us(in_channels=16)
    flop = 2.0 * 64 * 128**2 * 64 * 8 * 9
    rate = 2 * 129.0 * 132 * H200.boost_mhz * 64 / (64 + 37.7) * 72 / (72 + 42.0)
    assert few == pytest.approx(flop / rate + 2.0, rel=1e-9)
    assert few > 0.8 * many


def test_groups_of_a_volume_multiply_the_zeros_of_strides() -> None:
    volume = {"direction": "bwd_data", "depth": 3, "groups": 4, "padding": 1}
    one = took_us(**volume, in_channels=96, stride=1)
    other = took_us(**volume, in_channels=96, stride=2)
    assert other == pytest.approx(8 / 4 * (one - 2.0) + 2.0, rel=0.05)


def test_depthwise_kernels_of_few_sizes_are_compiled() -> None:
    alone = {"groups": 64, "in_channels": 64}
    assert took_us(**alone, kernel_size=3) < took_us(**alone, kernel_size=2)


@pytest.mark.parametrize("count", [3, 16, 64, 512])
def test_many_channels_take_longer(count: int) -> None:
    assert took_us(in_channels=2 * count) > took_us(in_channels=count)


def test_the_table_tells_its_parts() -> None:
    with TABLE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    parts = ("layout_in_us", "weights_us", "layout_out_us")
    first = [row for row in rows if row["product"].endswith("f32_nchwkcrs_nchw_tilesize128x32x8")]
    assert first
    assert all(float(row[part]) == 0.0 for row in first for part in parts)
    assert all(float(row["product_us"]) > 0.0 for row in rows)
