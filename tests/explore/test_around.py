"""Elasticities of functions whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from explore.conftest import MakeSpec

from perfmodel.errors import UsageError
from perfmodel.explore import sensitivity
from perfmodel.explore.result import base_point
from perfmodel.explore.spec import Spec

BANDWIDTH, CORES = "device.hbm_gb_per_s", "device.sm_count"
AXES = f"""
{BANDWIDTH} = {{ low = 500, high = 4000, steps = 2 }}
{CORES} = {{ low = 40, high = 160, steps = 2 }}
"""
Step = Callable[[Mapping[str, Any]], float]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], None]:
    """`step(f)`: points take what `f` says of their axes."""

    def use(function: Step) -> None:
        def figures_at(spec: Spec, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
            return {"step_us": np.array([function(row) for row in rows], float)}

        for module in ("result",):
            monkeypatch.setattr(f"perfmodel.explore.{module}.figures_at", figures_at)

    return use


def test_the_base_is_the_hardware_as_it_is_unless_told(spec: MakeSpec) -> None:
    assert base_point(spec(axes=AXES)) == {BANDWIDTH: 900.0, CORES: 80}
    told = spec(axes=AXES + f'[at]\n"{CORES}" = 100')
    assert base_point(told) == {BANDWIDTH: 900.0, CORES: 100}
    with pytest.raises(UsageError, match=r"at\.nodes is none of the axes"):
        base_point(spec(axes=AXES + "[at]\nnodes = 2"))


def test_elasticities_of_a_product_of_powers(spec: MakeSpec, step: Callable[[Step], None]) -> None:
    step(lambda row: 1e6 * row[BANDWIDTH] ** -1.0 * row[CORES] ** -0.5)
    found = sensitivity(spec(axes=AXES))
    assert [row["axis"] for row in found.moved] == [BANDWIDTH, CORES], "largest first"
    assert [row["elasticity"] for row in found.moved] == pytest.approx([-1.0, -0.5])
    first, second = found.moved
    assert first["at_high"] / first["at_base"] == pytest.approx(1 / 1.1)
    assert (second["low"], second["high"]) == (73, 88), "whole numbers stay whole"


def test_what_cannot_be_moved(spec: MakeSpec) -> None:
    names = replace(spec(axes='hardware = ["t4", "l4"]'), hardware=None)
    with pytest.raises(UsageError, match="no axis has numbers"):
        sensitivity(names)
