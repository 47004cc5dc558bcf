"""Published figures: what holds, and that predictions follow the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from slow import slow_but

from perfmodel.errors import PerfmodelError
from perfmodel.evaluate.published_designs import (
    Figure,
    Lab,
    cases_in,
    evaluate_designs,
    published_folder,
)
from perfmodel.hardware import Cluster

CASES = cases_in(published_folder())


def figure(target: float | tuple[float, float], predicted: float, tolerance: float) -> Figure:
    return Figure("V0", "a figure", "ms", target, predicted, tolerance, "nowhere")


@pytest.mark.parametrize(
    ("target", "predicted", "tolerance", "error_pct", "holds"),
    [
        (10.0, 12.5, 25.0, 25.0, True),
        (10.0, 12.6, 25.0, 26.0, False),
        (10.0, 7.5, 25.0, -25.0, True),
        (10.0, 10.0, 0.0, 0.0, True),
        (10.0, 10.001, 0.0, 0.01, False),
        ((5.0, 29.0), 29.0, 0.0, 0.0, True),
        ((5.0, 29.0), 58.0, 0.0, 100.0, False),
        ((-72.0, -41.0), -82.0, 0.0, -13.889, False),
    ],
)
def test_a_figure_holds_within_its_tolerance_or_band(
    target: float | tuple[float, float],
    predicted: float,
    tolerance: float,
    error_pct: float,
    holds: bool,
) -> None:
    found = figure(target, predicted, tolerance)
    assert found.error_pct == pytest.approx(error_pct, abs=1e-3)
    assert found.holds is holds


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(PerfmodelError, match="unknown published figure 'V99'"):
        evaluate_designs(only=["V99"])


SOURCE = """
from perfmodel.evaluate.published_designs import Figure, case


@case("{name}")
def found(lab):
    yield Figure("{name}", "a figure", "ms", 1.0, 1.0, 0.0, "nowhere")
"""


def test_the_beginning_of_names_is_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    for number, name in enumerate(("V0-a", "V0-b", "V01")):
        (tmp_path / f"case_{number}.py").write_text(SOURCE.format(name=name))
    found = evaluate_designs(only=["V0-b", "V0"], folder=tmp_path).figures
    assert [each.id for each in found] == ["V0-a", "V0-b"]


def test_a_folder_that_is_no_package_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit('was run')\n")
    with pytest.raises(PerfmodelError, match=r"it has no __init__\.py"):
        evaluate_designs(folder=tmp_path)


def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    with pytest.raises(PerfmodelError, match="no published figures"):
        evaluate_designs(folder=tmp_path)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(PerfmodelError, match=r"broken\.py: ModuleNotFoundError"):
        evaluate_designs(folder=tmp_path)


def halved(machine: Cluster) -> Cluster:
    """Every bandwidth of the device, its links and its adapters, at half; drives half as fast."""
    device, drive = machine.node.device, machine.node.storage
    slower = replace(
        device,
        hbm_gb_per_s=device.hbm_gb_per_s / 2,
        l2_gb_per_s=None if device.l2_gb_per_s is None else device.l2_gb_per_s / 2,
        pcie_gb_per_s=None if device.pcie_gb_per_s is None else device.pcie_gb_per_s / 2,
    )
    if drive is not None:
        alone_us = 2 * (drive.read_latency_us or 0.0) or None
        drive = replace(drive, read_iops=drive.read_iops / 2, read_latency_us=alone_us)
    nic, link = machine.node.nic, machine.node.link
    halves = {
        "nic": nic and replace(nic, gb_per_s=nic.gb_per_s / 2),
        "link": link and replace(link, gb_per_s=link.gb_per_s / 2),
    }
    return replace(machine, node=replace(machine.node, device=slower, storage=drive, **halves))


HOST_BOUND = tuple(
    f"V13-{name}" for name in ("hotline", "fae-hybrid", "fae-over-hybrid", "hotline-over-fae")
)
"""Steps that are bound by launches, by PyTorch's operators on the CPU, and by copies from pageable
memory, which a bus of half the rate is still fast enough for."""


def with_half_the_host(machine: Cluster) -> Cluster:
    """Threads and memory of the host half as fast."""
    host = machine.node.host
    slower = replace(
        host,
        single_thread_ratio=host.single_thread_ratio / 2,
        dram_gb_per_s=host.dram_gb_per_s / 2,
    )
    return replace(machine, node=replace(machine.node, host=slower))


@pytest.mark.parametrize("name", slow_but(1, CASES))
def test_predicted_figures_follow_the_devices_bandwidth(name: str) -> None:
    usual = evaluate_designs(only=[name]).figures
    slower = evaluate_designs(Lab(halved), only=[name]).figures
    assert [figure.id for figure in usual] == [figure.id for figure in slower]
    for before, after in zip(usual, slower, strict=True):
        if not before.provenance.startswith("exact") and before.id not in HOST_BOUND:
            assert after.predicted != pytest.approx(before.predicted, rel=1e-4), before.id


@pytest.mark.slow
def test_what_the_host_bounds_follows_the_host() -> None:
    for name in {each.partition("-")[0] for each in HOST_BOUND}:
        usual = evaluate_designs(only=[name]).figures
        slower = evaluate_designs(Lab(with_half_the_host), only=[name]).figures
        for before, after in zip(usual, slower, strict=True):
            if before.id in HOST_BOUND:
                assert after.predicted != pytest.approx(before.predicted, rel=1e-3), before.id


def test_ids_begin_with_their_case() -> None:
    found = evaluate_designs(only=["V15"]).figures
    assert [figure.id for figure in found] == ["V15-multi-hot"]
    assert found[0].predicted == pytest.approx(214 / 26)
