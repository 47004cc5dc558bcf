"""Designs with as much of a budget as is fastest: more memory never hurts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from slow import slow_but

from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.baselines import GpuOnly
from perfmodel.designs.composed import composed
from perfmodel.designs.deployment import Budgeted, Design, changes
from perfmodel.designs.popular_samples import Fae, Hotline
from perfmodel.designs.settings import halves
from perfmodel.designs.training_systems import Neo
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load, node
from perfmodel.hardware.parts import Nic
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.prediction.step import least_us
from perfmodel.workload import load_workload
from perfmodel.workload.tables import Table

STEP = 1 + 1e-9


@cache
def on_one_node(machine: str, alpha: float, batch: int, train: bool) -> Deployment:
    """Three tables of four million rows of 32 elements, small layers."""
    workload = load_workload("hotline-rm3").with_(
        model__bottom_mlp=[32],
        model__top_mlp=[64, 1],
        table__rows=4_000_000,
        table__dim=32,
        table__alpha=alpha,
    )
    workload = replace(workload, tables=workload.tables[:3])
    return deployment_of(workload, cluster(machine), batch, train=train)


@cache
def on_nodes(sharding: str, pooling: float, train: bool) -> Deployment:
    """Eight nodes of one GPU, whose adapters have memory."""
    nic = load("u280")
    assert isinstance(nic, Nic)
    machine = cluster(replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=nic), 8)
    workload = load_workload("smartnic-rm").with_(
        table__pooling=pooling, implementation__sharding=sharding
    )
    workload = replace(workload, tables=workload.tables[:8])
    return deployment_of(workload, machine, 4096, train=train)


LARGE = ("hotline-server", 1.05, 65_536, True)
SMALL = ("dgx-a100-40gb", 0.8, 4096, True)
ASKED = ("dgx-a100-40gb", 1.05, 8192, False)
CASES: list[tuple[str, dict[str, Any], str, tuple[float, ...], tuple[Any, ...]]] = [
    ("recshard", {}, "hbm_gb", (0.1, 0.2, 0.4), ASKED),
    ("recshard", {}, "hbm_gb", (0.1, 0.4, 8.0), LARGE),
    ("hotline", {}, "hot_mib", (4.0, 64.0, 256.0), LARGE),
    ("hotline", {}, "hot_mib", (4.0, 128.0), SMALL),
    ("fae", {"inputs": 1e9}, "hot_mib", (8.0, 16.0, 256.0), LARGE),
    ("fae", {"pooled_on": "operators"}, "hot_mib", (8.0, 16.0, 256.0), SMALL),
    ("software_cache", {}, "cache_frac", (0.1, 0.2, 0.8), SMALL),
    (
        "software_cache",
        {"kept_by": "operators", "policy": "static"},
        "cache_frac",
        (0.05, 0.1, 0.8),
        LARGE,
    ),
    ("software_memory", {}, "cache_gib", (0.32, 0.64, 1.28), SMALL),
]
NETWORKED: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({}, ("table_wise", 1.0, False)),
    ({}, ("row_wise", 1.0, False)),
    ({}, ("table_wise", 4.0, False)),
    ({}, ("table_wise", 1.0, True)),
]


def steps_of(
    name: str, settings: dict[str, Any], budget: str, sizes: tuple[float, ...], start: Deployment
) -> list[float]:
    """By the size of the budget; halves that budgets share are predicted once."""
    designs = [DESIGNS[name](**settings | {budget: size}) for size in sizes]
    return [fastest(design, start)[1].results[0].step_us for design in designs]


@pytest.mark.parametrize(("name", "settings", "budget", "sizes", "start"), slow_but(1, CASES))
def test_more_memory_never_hurts(
    name: str,
    settings: dict[str, Any],
    budget: str,
    sizes: tuple[float, ...],
    start: tuple[Any, ...],
) -> None:
    steps = steps_of(name, settings, budget, sizes, on_one_node(*start))
    assert all(more <= STEP * less for less, more in pairwise(steps)), steps


@pytest.mark.parametrize(("settings", "start"), slow_but(1, NETWORKED))
def test_more_memory_in_adapters_never_hurts(
    settings: dict[str, Any], start: tuple[Any, ...]
) -> None:
    steps = steps_of("smartnic", settings, "cache_gib", (0.1, 0.2, 0.4), on_nodes(*start))
    assert all(more <= STEP * less for less, more in pairwise(steps)), steps


@pytest.mark.slow
def test_more_cache_never_hurts_neo() -> None:
    """Forty tables of 13.2 GB on 16 devices of 30 GB: less cache leaves more of them there."""
    base = cluster("zionex", 2)
    device = replace(base.node.device, hbm_bytes=30_000_000_000)
    machine = replace(base, node=replace(base.node, device=device))
    workload = replace(load_workload("neo-i"), tables=(Table(100_000_000, 64, 20.0, 1.05),) * 40)
    start = deployment_of(workload, machine, 131_072)
    steps = steps_of("neo", {}, "cache_frac", (0.025, 0.05, 0.1), start)
    assert all(more <= STEP * less for less, more in pairwise(steps)), steps
    plain = predict(Neo(cache_frac=0.1).apply(start)).results[0]
    assert steps[-1] <= plain.step_us


@pytest.mark.slow
def test_less_is_taken_only_where_it_is_faster_and_a_note_says_so() -> None:
    start = on_one_node(*SMALL)
    design = Hotline(hot_mib=32)
    deployment, found = fastest(design, start)
    whole = predict(design.apply(start))
    told = [note for note in deployment.notes if ": what is set is no faster, " in note]
    assert bool(told) == (found.results[0].step_us < whole.results[0].step_us)
    assert found.results[0].step_us <= whole.results[0].step_us
    again = predict(deployment).results[0]
    assert again.step_us == pytest.approx(found.results[0].step_us, rel=1e-9)


@pytest.mark.parametrize(
    ("design", "known_frac"),
    [(Hotline(hot_mib=256), 0.5), (Fae(hot_mib=256, switch_every_steps=1), 0.99)],
)
def test_a_step_takes_at_least_what_is_soon_known(design: Design, known_frac: float) -> None:
    """Of FAE, rows that move between kinds of steps are most of it."""
    whole = design.apply(on_one_node(*SMALL))
    found = predict(whole).results[0]
    least = least_us(whole)
    assert known_frac * found.step_us < least <= STEP * found.step_us


@pytest.mark.slow
@pytest.mark.parametrize("start", [SMALL, LARGE])
def test_what_is_left_out_is_not_faster(start: tuple[Any, ...]) -> None:
    design, begun = Hotline(hot_mib=8), on_one_node(*start)
    ways = [design, *design.within(begun)]
    least = min(predict(way.apply(begun)).results[0].step_us for way in ways)
    assert fastest(design, begun)[1].results[0].step_us == pytest.approx(least, rel=1e-9)


@pytest.mark.slow
def test_of_a_budget_that_does_not_fit_a_part_is_taken() -> None:
    base = on_one_node(*SMALL)
    device = replace(base.machine.node.device, hbm_bytes=600_000_000)
    node_ = replace(base.machine.node, device=device)
    start = replace(base, machine=replace(base.machine, node=node_))
    with pytest.raises(WorkloadError, match="device memory"):
        predict(Hotline(hot_mib=1_200).apply(start))
    budget = Hotline(hot_mib=1_200, launches="as_they_come")
    deployment, found = fastest(budget, start)
    assert "in the place of 1200: what is set does not fit" in deployment.notes[-1]
    assert found.results[0].step_us <= STEP * _step_us(replace(budget, hot_mib=75), start)


def test_what_fits_with_no_part_of_a_budget_says_why() -> None:
    base = on_one_node(*SMALL)
    node_ = replace(base.machine.node, host_memory_bytes=1_000_000_000)
    start = replace(base, machine=replace(base.machine, node=node_))
    with pytest.raises(WorkloadError, match="host memory"):
        fastest(Hotline(hot_mib=64), start)


def _step_us(design: Hotline, start: Deployment) -> float:
    return fastest(design, start)[1].results[0].step_us


def test_designs_without_a_budget_are_as_they_are() -> None:
    start = on_one_node(*SMALL)
    deployment, found = fastest(GpuOnly(), start)
    assert deployment == GpuOnly().apply(start)
    again_us = predict(deployment).results[0].step_us
    assert found.results[0].step_us == pytest.approx(again_us, rel=1e-9)


def test_what_was_predicted_is_not_predicted_again_whatever_its_notes_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = on_one_node(*SMALL)
    once = fastest(GpuOnly(), start)[1]
    monkeypatch.setattr("perfmodel.prediction.step.predict_shapes", None)
    deployment, again = fastest(GpuOnly(), start.with_("of another design"))
    assert again.results[0].step_us == once.results[0].step_us
    assert again.results[0].reads == once.results[0].reads
    assert "of another design" in deployment.notes
    assert any("of another design" in line for line in again.warnings)
    assert not any("of another design" in line for line in once.warnings)


def test_halves_of_twice_as_much_are_it_and_its_halves() -> None:
    halved = halves(1.0)
    assert list(halved(8.0)) == pytest.approx([0.0, 4.0, 2.0, 1.0])
    assert sorted(halved(16.0)) == pytest.approx(sorted([8.0, *halved(8.0)]))
    assert list(halved(1.5)) == [0.0]


def test_each_of_combined_designs_may_take_less() -> None:
    both = composed("hotline+software_cache", {"software_cache": {"cache_frac": 0.004}})
    assert isinstance(both, Budgeted)
    sizes = {
        (design.designs[0].hot_mib, design.designs[1].cache_frac)  # type: ignore[attr-defined]
        for design in both.within(on_one_node(*SMALL))
    }
    assert len(sizes) == (10 + 1) * (3 + 1)
    assert {(512.0, 0.002), (1.0, 0.001)} < sizes


def test_what_changed_is_told() -> None:
    assert changes(Hotline(512), Hotline(64)) == "hot_mib 64 in the place of 512"
