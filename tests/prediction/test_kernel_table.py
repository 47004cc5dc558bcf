"""Kernels of a prediction from shapes: their work and their number."""

from __future__ import annotations

import pandas as pd
import pytest

from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.reasons import ModelExplainer
from perfmodel.prediction.scheduled import kernels_of


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict("lin-dlrm-mlperf", hardware=["v100-sxm2-16gb"], batch=2048)


@pytest.fixture(scope="module")
def table(prediction: Prediction) -> pd.DataFrame:
    explainer = prediction.results[0].explainer
    assert isinstance(explainer, ModelExplainer)
    return kernels_of(explainer.found, 0)


def test_the_kernels_make_up_the_families_time(prediction: Prediction, table: pd.DataFrame) -> None:
    result = prediction.results[0]
    kernels_us = float((table["count"] * table["duration_us"]).sum())
    assert kernels_us == pytest.approx(sum(row["time_us"] for row in result.families), rel=1e-3)


def test_a_product_has_two_flop_per_multiply_and_add(table: pd.DataFrame) -> None:
    """The top MLP's second layer: 2,048 samples, 1,024 to 1,024."""
    products = {
        flop
        for family, flop in zip(table["family"], table["flop"], strict=True)
        if family == "matmul"
    }
    assert 2.0 * 2048 * 1024 * 1024 in {round(flop / 2**31) * 2.0**31 for flop in products}


def test_nothing_is_above_the_roofs(prediction: Prediction, table: pd.DataFrame) -> None:
    device = prediction.results[0].device
    assert device is not None
    us, products = table["duration_us"], table["family"] == "matmul"
    assert (table["flop"] <= device.fp32_tflop_per_s * 1e6 * us)[products].all()
    moved = (table["family"] == "elementwise") & (table["bytes"] > 10 * device.l2_bytes)
    assert (table["bytes"] <= device.hbm_gb_per_s * 1e3 * us * (1 + 1e-9))[moved].all()
