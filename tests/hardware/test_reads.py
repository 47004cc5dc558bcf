"""Figures of the parts that an answer uses, with units and sources."""

from __future__ import annotations

import pytest

from perfmodel.hardware import cluster
from perfmodel.hardware.grounds import FigureRead, figure_read, figures_used


def test_figures_are_those_of_the_parts_and_single_ones() -> None:
    machine = cluster("dgx-h100")
    used = figures_used(machine, ("link", "device.hbm_gb_per_s"))
    assert {each.figure.partition(".")[0] for each in used} == {"device", "link"}
    (read,) = (each for each in used if each.figure.startswith("device."))
    assert (read.part, read.value, read.unit) == ("h100-sxm", 3350.0, "GB/s")
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
    assert FigureRead("x", "device.l2_bytes", 1.0, "bytes", source).grounds == grounds


def test_units_are_those_of_the_names() -> None:
    node = cluster("dgx-h100").node
    assert figure_read(node.device, "device", "hbm_gb_per_s").unit == "GB/s"
    assert figure_read(node, "node", "gpus").unit == "count"
    assert figure_read(node.device, "device", "target").unit == ""
