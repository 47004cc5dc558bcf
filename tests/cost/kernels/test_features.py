"""Figures that trees see: what takes little of the time tells them nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel import hardware
from perfmodel.cost.learned.features import matmul_features, share, streaming_features
from perfmodel.ops.rows import Rows

ADDS = Rows.from_frame(
    pd.DataFrame({"op": "add", "dtype": "fp16", "rows": [64.0, 4096.0, 65536.0], "cols": 4096.0})
)


def test_a_term_that_may_decide_the_time_is_told_by_its_share() -> None:
    assert np.exp(share(np.array([0.5, 1.0]), np.ones(2))) == pytest.approx([0.5, 1.0])


def test_a_term_that_takes_little_of_the_time_tells_no_devices_apart() -> None:
    """An A100 has half an H100's arithmetic per byte, which no addition comes near to."""
    one, other = (
        streaming_features(ADDS, hardware.device(name), {}).figures["compute"]
        for name in ("a100-pcie-80gb", "h100-sxm")
    )
    assert one.tolist() == other.tolist()


def test_products_in_fewer_bits_are_told_where_the_same_came_just_before() -> None:
    shape = {"op": "linear", "m": 64.0, "n": 64.0, "k": 64.0}
    table = pd.DataFrame([shape] * 4).assign(cache=["cold", "warm", np.nan, "warm"])
    rows = Rows.from_frame(table.assign(dtype=["fp8", "fp8", "fp8", "fp16"]))
    figures = matmul_features(rows, hardware.device("h100-sxm"), {}).figures
    assert figures["warm"].tolist() == [0.0, 1.0, 0.0, 0.0]
