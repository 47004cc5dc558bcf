"""Features that trees see: what takes little of the time tells them nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel import hardware
from perfmodel.cost.learned.features import (
    NOT_BELOW,
    convolution_features,
    matmul_features,
    share,
    streaming_features,
)
from perfmodel.ops.rows import Rows

ADDS = Rows.from_frame(
    pd.DataFrame({"op": "add", "dtype": "fp16", "rows": [64.0, 4096.0, 65536.0], "cols": 4096.0})
)


def test_a_term_that_may_decide_the_time_is_told_by_its_share() -> None:
    assert np.exp(share(np.array([0.5, 1.0]), np.ones(2))) == pytest.approx([0.5, 1.0])


def test_a_term_that_takes_little_of_the_time_tells_no_devices_apart() -> None:
    """An A100 has half an H100's arithmetic per byte, which no addition comes near to."""
    one, other = (
        streaming_features(ADDS, hardware.device(name)).features["compute"]
        for name in ("a100-pcie-80gb", "h100-sxm")
    )
    assert one.tolist() == other.tolist()


def test_products_in_fewer_bits_are_told_where_the_same_came_just_before() -> None:
    shape = {"op": "linear", "m": 64.0, "n": 64.0, "k": 64.0}
    table = pd.DataFrame([shape] * 4).assign(cache=["cold", "warm", np.nan, "warm"])
    rows = Rows.from_frame(table.assign(dtype=["fp8", "fp8", "fp8", "fp16"]))
    features = matmul_features(rows, hardware.device("h100-sxm")).features
    assert features["warm"].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_weights_are_read_transposed_by_layers_and_where_a_table_says_so() -> None:
    shape = {"b": 1.0, "m": 64.0, "n": 64.0, "k": 64.0, "dtype": "fp32"}
    table = pd.DataFrame([shape] * 4).assign(op=["linear", "bmm", "bmm", "bmm"])
    table = table.assign(transpose_a=[None, None, "T", "N"], transpose_b=[None, None, "N", "N"])
    features = matmul_features(Rows.from_frame(table), hardware.device("t4")).features
    turned = features["second_turned"]
    assert turned[0] == turned[2] > turned[1] == turned[3] == 0.0


def test_smaller_windows_and_gradients_are_below_what_forward_passes_of_3_x_3_tell_of() -> None:
    shape = {"op": "conv2d", "batch": 8.0, "in_channels": 64.0, "out_channels": 64.0}
    table = pd.DataFrame([shape | {"input_size": 28.0}] * 3).assign(
        kernel_size=[3.0, 1.0, 3.0], padding=[1.0, 0.0, 1.0], direction=["fwd", "fwd", "bwd_data"]
    )
    features = convolution_features(Rows.from_frame(table), hardware.device("t4")).features
    below = [features[name][0] - features[name][1:] for name in NOT_BELOW["convolution"]]
    assert np.max(below, axis=0).tolist() == pytest.approx([np.log(9.0), 2.0])
