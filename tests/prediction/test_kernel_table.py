"""Kernels of a prediction from shapes: their work, their number, and the roofline of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.scheduled import KernelTable


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict("lin-dlrm-mlperf", hardware=["v100-sxm2-16gb"], batch=2048)


@pytest.fixture(scope="module")
def table(prediction: Prediction) -> KernelTable:
    found = prediction.results[0].kernels
    assert found is not None
    return found


def test_the_kernels_make_up_the_families_time(prediction: Prediction, table: KernelTable) -> None:
    result = prediction.results[0]
    kernels_us = float((table.count * table.duration_us).sum())
    assert kernels_us == pytest.approx(sum(row["time_us"] for row in result.families), rel=1e-3)


def test_a_product_has_two_flop_per_multiply_and_add(table: KernelTable) -> None:
    """The top MLP's second layer: 2,048 samples, 1,024 to 1,024."""
    products = {
        flop
        for family, flop in zip(table.family, table.flop.tolist(), strict=True)
        if family == "matmul"
    }
    assert 2.0 * 2048 * 1024 * 1024 in {round(flop / 2**31) * 2.0**31 for flop in products}


def test_nothing_is_above_the_roofs(table: KernelTable) -> None:
    gb_per_s, tflop_per_s = table.device.hbm_gb_per_s, table.device.fp32_tflop_per_s
    products = np.array([family == "matmul" for family in table.family])
    roof = np.minimum(tflop_per_s * 1e6 * table.duration_us, np.inf)
    assert (table.flop[products] <= roof[products]).all()
    large = table.bytes > 10 * table.device.l2_bytes
    moved = np.array([family == "elementwise" for family in table.family]) & large
    assert (table.bytes[moved] <= gb_per_s * 1e3 * table.duration_us[moved] * (1 + 1e-9)).all()


def test_it_draws_and_says_what_it_needs(prediction: Prediction, table: KernelTable) -> None:
    axes = table.roofline().axes[0]
    shown = {text.get_text() for text in axes.get_legend().get_texts()}
    assert "matmul" in shown
    replayed = replace(prediction.results[0], kernels=None)
    with pytest.raises(UsageError, match="needs shapes"):
        replayed.roofline()
