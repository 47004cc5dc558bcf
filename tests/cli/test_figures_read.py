"""The line that names figures which are assumed or recalled."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.cli.console import LINE, assumed
from perfmodel.hardware.schema import FigureRead


def said(*figures: FigureRead) -> str:
    return assumed("node", [each.to_dict() for each in figures])


def test_parts_are_named_where_several_have_the_figure() -> None:
    gpu = FigureRead("h100-sxm", "device.hbm_bytes", 8, "a data sheet, recalled")
    cpu = FigureRead("epyc-7742", "device.hbm_bytes", 9, "assumed: eight modules")
    cores = FigureRead("epyc-7742", "device.sm_count", 64, "a data sheet, recalled")
    assert said(gpu, cpu, cores) == (
        "node: 1 hardware value is a guess, 2 were not checked against their source (--sources)"
    )
    token = LINE.set(replace(LINE.get(), sources=True))
    every = said(gpu, cpu, cores)
    LINE.reset(token)
    assert every.startswith(
        "node: hardware values assumed: epyc-7742 device.hbm_bytes 9; "
        "recalled: h100-sxm device.hbm_bytes 8, device.sm_count 64 (sources"
    )


def test_figures_with_a_source_are_not_listed() -> None:
    assert said(FigureRead("h100-sxm", "device.hbm_bytes", 8, "a page")) == ""
