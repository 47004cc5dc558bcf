"""Generations of GPUs: whose figures stand in, and what is said of an unknown one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cost.collectives.calls import fabric_of
from perfmodel.cost.gpu.rates import sustained_flop_per_us
from perfmodel.hardware import cluster, device
from perfmodel.hardware.grounds import (
    GENERATIONS,
    Generation,
    lineage,
    nearest_known,
    unknown_generations,
)


@pytest.fixture
def feynman(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that is like Hopper, as a plug-in would register it."""
    items = {**GENERATIONS._items, "feynman": Generation("nvidia", "hopper")}
    monkeypatch.setattr(GENERATIONS, "_items", items)


def test_a_generation_takes_figures_of_what_it_is_like(feynman: None) -> None:
    assert list(lineage("feynman")) == ["feynman", "hopper"]
    assert list(lineage("cdna4")) == ["cdna4", "cdna3", "cdna2", "cdna"]
    assert nearest_known("cdna3", {"cdna": 1, "hopper": 2}) == "cdna"
    assert nearest_known("ada", {"ampere"}) is None
    assert nearest_known(None, {"ampere"}) is None
    hopper = device("h100-sxm")
    new = replace(hopper, architecture="feynman")
    rates = [sustained_flop_per_us(each, ["fp32"], np.array([1e9])) for each in (hopper, new)]
    assert rates[0] == rates[1]


def test_switches_reduce_only_where_the_generation_says_so(feynman: None) -> None:
    node = cluster("dgx-h100").node
    assert fabric_of(node).has_multicast
    other = replace(node, device=replace(node.device, architecture="feynman"))
    assert not fabric_of(other).has_multicast


def test_an_unknown_generation_is_said() -> None:
    hopper = device("h100-sxm")
    unknown = replace(hopper, name="mine", architecture="hoper")
    (note,) = unknown_generations([hopper, unknown, unknown])
    assert note.startswith("mine: nothing is known of the generation 'hoper'")
    assert "hopper" in note
    assert not unknown_generations([replace(hopper, architecture=None), device("epyc-7742")])


def test_all_of_the_catalogue_are_known() -> None:
    from perfmodel.hardware import names

    assert not unknown_generations([device(name) for name in names("device")])
