"""Figures of the parts that an answer uses, with units and sources; generations of GPUs: whose
figures stand in, and what is said of an unknown one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.gpu.rates import sustained_flop_per_us
from perfmodel.hardware import cluster, device
from perfmodel.hardware.catalogue import (
    GENERATIONS,
    Generation,
    lineage,
    nearest_known,
    unknown_generations,
)
from perfmodel.hardware.schema import FigureRead, figure_read, figures_used
from perfmodel.ops.rows import Rows


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
    other = replace(node, device=replace(node.device, architecture="feynman"))
    rows = Rows.of([{"op": "all_reduce", "size_bytes": 1e8, "ranks": 8}])
    assert calls_of(rows, fabric_of(node)).has_multicast.all()
    assert not calls_of(rows, fabric_of(other)).has_multicast.any()


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


def test_figures_are_those_of_the_parts_and_single_ones() -> None:
    machine = cluster("dgx-h100")
    used = figures_used(machine, ("link", "device.hbm_gb_per_s"))
    assert {each.figure.partition(".")[0] for each in used} == {"device", "link"}
    (read,) = (each for each in used if each.figure.startswith("device."))
    assert (read.part, read.unit) == ("h100-sxm", "GB/s")
    assert read.value == pytest.approx(3350)
    assert read.source == machine.node.device.sources["hbm_gb_per_s"]
    assert not any("_usd" in each.figure for each in figures_used(machine, ("device", "node")))


@pytest.mark.parametrize(
    ("source", "grounds"),
    [
        ("assumed: as the A100", "assumed"),
        ("not stated", "assumed"),
        ("data sheet, recalled", "recalled"),
        ("data sheet", "sourced"),
    ],
)
def test_what_a_figure_rests_on(source: str, grounds: str) -> None:
    assert FigureRead("x", "device.l2_bytes", 1.0, source).grounds == grounds


def test_units_are_those_of_the_names() -> None:
    node = cluster("dgx-h100").node
    assert figure_read(node.device, "device", "hbm_gb_per_s").unit == "GB/s"
    assert figure_read(node, "node", "gpus").unit == "count"
    assert figure_read(node.device, "device", "target").unit == ""
