"""Published figures: what holds, and that predictions follow the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from slow import slow_but

from benchmarks.published.designs import (
    DesignFigures,
    Figure,
    Lab,
    Study,
    evaluate_designs,
    read_studies,
)
from benchmarks.published.files import Row, published_folder
from perfmodel.hardware import Cluster

STUDIES = {study.path.stem: study for study in read_studies(published_folder())}
ROWS = [row for study in STUDIES.values() for row in study.document.figures]


def figure(target: float | tuple[float, float], predicted: float, tolerance: float) -> Figure:
    about = ("a-figure", "a figure", "ms", target, "nowhere", "exact", "step_ms")
    return Figure(Row(*about, tolerance_pct=tolerance), predicted)


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


def test_rows_are_counted_per_evidence() -> None:
    rows = (figure(10.0, 10.0, 0.0), figure(10.0, 11.0, 0.0))
    assert DesignFigures(rows).holding() == {"exact": (1, 2)}


def test_what_is_not_exact_says_what_was_known() -> None:
    assert all(row.known for row in ROWS if row.evidence != "exact")
    assert {row.evidence for row in ROWS} <= {"exact", "blind", "seen", "input"}


def test_exact_figures_hold() -> None:
    exact = [row.id for row in ROWS if row.evidence == "exact"]
    assert len(exact) >= 19
    assert [
        figure.row.id for figure in evaluate_designs(only=exact).figures if not figure.holds
    ] == []


def test_the_lookups_of_dcnv2_are_counted_by_hand() -> None:
    (found,) = evaluate_designs(only=["torchrec-dlrm-lookups"]).figures
    assert found.predicted == pytest.approx(214 / 26)


def test_answers_follow_their_schema() -> None:
    document = evaluate_designs(only=["fbgemm-rows-int8"]).to_dict()
    schema = Path(__file__).parents[3] / "docs" / "schemas" / "evaluation.designs.json"
    jsonschema.validate(json.loads(json.dumps(document)), json.loads(schema.read_text()))
    assert [row["target"] for row in document["rows"]] == [48, 80, 144]


def halved(machine: Cluster) -> Cluster:
    """Every bandwidth of the device, its links, its adapters and its host's memory at half; drives
    and threads half as fast."""
    device, drive, host = machine.node.device, machine.node.storage, machine.node.host
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
        "host": replace(
            host,
            single_thread_ratio=host.single_thread_ratio / 2,
            dram_gb_per_s=host.dram_gb_per_s / 2,
        ),
    }
    return replace(machine, node=replace(machine.node, device=slower, storage=drive, **halves))


NO_GAIN = ("smartnic-abstract-throughput",)
"""Ratios of 1: with every row written through, adapters make no training step shorter."""
FEWER = {"tables": 20, "total_rows": [6.6e7], "hbm_gb_per_rank": 2.4, "nodes": 1}
"""A twentieth of the models that rows of RecShard are of: as much of them fits on half the GPUs."""
ONE_HOT = {"pooling": [1.0]}
"""Where caches of SmartNIC's box pay."""


def smaller(row: Row) -> Row:
    """One step in the place of several, a point in that of a box, smaller synthetic models."""
    settings = dict(row.settings)
    if "models" in settings:
        settings["models"] |= FEWER
    if "steps" in settings:
        settings["steps"] = settings["steps"][:1]
    if "axes" in settings:
        centre = {axis: values[:1] for axis, values in settings["axes"].items()}
        settings["axes"] = centre | ONE_HOT
    return replace(row, settings=settings)


def mechanisms(study: Study) -> list[Row]:
    """Of figures that are predicted alike on one machine, of several workloads, the first."""
    rows: dict[str, Row] = {}
    for row in study.document.figures:
        settings = dict(row.settings)
        if "step" in settings:
            settings["step"] = study.step(settings["step"]).machine
        if not row.provenance.startswith("exact") and row.id not in NO_GAIN:
            rows.setdefault(json.dumps([row.quantity, settings]), row)
    return list(rows.values())


def predicted(row: Row, change: Callable[[Cluster], Cluster]) -> float:
    """A figure on changed machines."""
    return changed(change)[row.id].figure(row).predicted


@cache
def changed(change: Callable[[Cluster], Cluster]) -> dict[str, Study]:
    """Each figure's study on changed machines: what rows share is predicted once."""
    studies = read_studies(published_folder(), Lab(change))
    return {row.id: study for study in studies for row in study.document.figures}


def as_it_is(machine: Cluster) -> Cluster:
    return machine


@pytest.mark.parametrize("name", slow_but(1, list(STUDIES)))
def test_predicted_figures_follow_the_machine(name: str) -> None:
    """Ratios of steps that one rate bounds hardly do; predictions without a machine not at all."""
    for row in map(smaller, mechanisms(STUDIES[name])):
        usual = predicted(row, as_it_is)
        assert predicted(row, halved) != pytest.approx(usual, rel=1e-6), row.id


def test_every_name_in_a_file_is_used() -> None:
    for study in STUDIES.values():
        settings = json.dumps([row.settings for row in study.document.figures])
        for name in (*study.document.steps, *study.document.variants):
            assert f'"{name}"' in settings, (study.path.name, name)
