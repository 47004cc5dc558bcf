"""Elasticities of functions whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from explore.conftest import MakeSpec

from perfmodel.errors import UsageError
from perfmodel.explore import sensitivity
from perfmodel.explore.axes import Points
from perfmodel.explore.result import base_point
from perfmodel.explore.spec import Spec

BANDWIDTH, CORES = "device.hbm_gb_per_s", "device.sm_count"
AXES = f"""
{BANDWIDTH} = {{ low = 500, high = 4000, steps = 2 }}
{CORES} = {{ low = 40, high = 160, steps = 2 }}
"""
Step = Callable[[Mapping[str, Any]], float]


def test_the_base_is_the_hardware_as_it_is(spec: MakeSpec) -> None:
    assert base_point(spec(axes=AXES)) == {BANDWIDTH: 900.0, CORES: 80}


def test_elasticities_of_a_product_of_powers(
    spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def evaluation_of(_: Spec) -> Callable[[Points], dict[str, np.ndarray]]:
        def evaluate(points: Points) -> dict[str, np.ndarray]:
            asked.extend(points.at(at) for at in range(len(points)))
            return {"step_us": np.array([1e6 / e[BANDWIDTH] * e[CORES] ** -0.5 for e in asked])}

        return evaluate

    monkeypatch.setattr("perfmodel.explore.result.evaluation_of", evaluation_of)
    found = sensitivity(spec(axes=AXES))
    assert found["axis"].tolist() == [BANDWIDTH, CORES], "largest first"
    assert found["elasticity"].tolist() == pytest.approx([-1.0, -0.5])
    assert found["base"].tolist() == [900.0, 80.0]
    assert [each[CORES] for each in asked] == [80, 80, 80, 73, 88], "whole numbers stay whole"


def test_what_cannot_be_moved(spec: MakeSpec) -> None:
    names = replace(spec(axes='hardware = ["t4", "l4"]'), hardware=None)
    with pytest.raises(UsageError, match="no axis has numbers"):
        sensitivity(names)
