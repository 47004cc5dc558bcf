"""SmartNICs: what they spare under sweeps of skew, ranks, memory and dense work."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.smartnic import SmartNic
from perfmodel.embedding import Pipeline
from perfmodel.errors import UsageError, WorkloadError
from perfmodel.hardware import Cluster, cluster, load, node, with_settings
from perfmodel.ops.graph import Op
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.workload import Workload, load_workload, op_graph

MINE = load_workload("smartnic-rm").with_(table__pooling=1)
BATCH = 512


def machine(ranks: int = 16, adapter: str = "u280") -> Cluster:
    nic = load(adapter)
    return cluster(replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=nic), ranks)  # type: ignore[arg-type]


def deployed(workload: Workload = MINE, ranks: int = 16, *, train: bool = False) -> Deployment:
    found = deployment_of(workload, machine(ranks), BATCH * ranks, train=train)
    return found.with_(pipeline=Pipeline())


def gain(design: SmartNic, plain: Deployment) -> float:
    before, after = (predict(each).results[0].step_us for each in (plain, design.apply(plain)))
    return before / after


def held(gib: float, **more: Any) -> SmartNic:
    """Half of so many GiB with other ranks' rows, whether that pays or not."""
    return SmartNic(cache_gib=gib / 2, **more)


def all_to_alls(deployment: Deployment, rank: int = 0) -> list[Op]:
    graph = op_graph(
        deployment.workload,
        deployment.batch,
        ranks=deployment.ranks,
        rank=rank,
        linked=1,
        train=deployment.train,
        placement=deployment.placement,
        pipeline=deployment.pipeline,
    )
    return [op for op in graph.ops if op.name == "c10d::alltoall_base_"]


def test_without_reuse_there_is_nothing_to_gain() -> None:
    even = MINE.with_(table__alpha=0)
    assert gain(SmartNic(cache_gib=0.25), deployed(even)) <= 1.005


def test_the_gain_rises_with_skew() -> None:
    models = [MINE.with_(table__alpha=alpha) for alpha in (0.5, 0.8, 1.0, 1.2)]
    gains = [gain(held(2), deployed(model)) for model in models]
    assert all(less < more for less, more in pairwise(gains))
    assert gains[-1] > 1.05


def test_the_gain_rises_with_the_number_of_ranks() -> None:
    gains = [gain(held(2), deployed(ranks=ranks)) for ranks in (4, 8, 16, 32)]
    assert all(less < more for less, more in pairwise(gains))


def test_the_gain_vanishes_where_dense_work_dominates() -> None:
    gains = [
        gain(held(2), deployed(MINE.with_(model__top_mlp=[width] * 3 + [1])))
        for width in (512, 8192, 32768)
    ]
    assert gains[0] > gains[1] > gains[2] > 0.99
    assert gains[2] - 1 < (gains[0] - 1) / 4


@pytest.mark.slow
def test_bags_of_many_rows_are_not_worth_asking_for() -> None:
    plain = deployed(MINE.with_(table__pooling=15.8))
    kept, found = fastest(SmartNic(adapter="bluefield-3"), plain)
    assert kept.placement == plain.placement
    assert kept.machine == plain.machine
    assert any("not applied" in note for note in kept.notes)
    assert any("cache_gib 0 in the place of auto" in note for note in kept.notes)
    assert found.results[0].step_us == pytest.approx(predict(plain).results[0].step_us)
    assert gain(SmartNic(adapter="bluefield-3"), plain) < 1
    assert gain(SmartNic(cache_gib=8), plain) < 1


def test_what_is_sent_is_what_others_receive() -> None:
    found = held(2).apply(deployed(ranks=4))
    calls = [all_to_alls(found, rank) for rank in range(4)]
    for place in range(len(calls[0])):
        splits = [
            [[int(n) for n in call[place].attributes[key].split(",")] for call in calls]
            for key in ("in_split", "out_split")
        ]
        sent, received = splits
        for rank in range(4):
            for other in range(4):
                if rank != other:
                    assert sent[rank][other] == pytest.approx(
                        received[other][rank], rel=0.02, abs=2
                    )


def test_keys_and_answers_found_in_caches_do_not_cross_the_network() -> None:
    plain = deployed()
    found = held(2).apply(plain)
    before, after = (
        [int(op.attributes["in_elements"]) for op in all_to_alls(each)] for each in (plain, found)
    )
    assert after[:2] == before[:2]
    assert after[2] < 0.7 * before[2]
    assert after[3] < 0.7 * before[3]


def test_what_links_carry_passes_no_adapter() -> None:
    nodes = cluster(replace(node("dgx-a100-40gb"), nic=load("u280")), 2)  # type: ignore[arg-type]
    plain = deployment_of(MINE, nodes, 16 * BATCH, train=False)
    found = held(0.5).apply(plain)
    splits = []
    for each in (plain, found):
        graph = op_graph(
            MINE, 16 * BATCH, ranks=16, linked=8, train=False, placement=each.placement
        )
        call = [op for op in graph.ops if op.name == "c10d::alltoall_base_"][-1]
        splits.append([int(n) for n in call.attributes["out_split"].split(",")])
    assert splits[0][:8] == splits[1][:8]
    assert all(after < before for before, after in zip(splits[0][8:], splits[1][8:], strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_gib": -1}, "cache_gib"),
        ({"cache_gib": float("nan")}, "cache_gib"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        SmartNic(**settings)  # type: ignore[arg-type]


def test_where_nothing_can_be_gained_the_step_stays_and_says_why() -> None:
    linked = deployment_of(MINE, cluster("dgx-a100-80gb"), 4096)
    on_host = deployed().placement.edited(lambda _n, _t: {"tier": "host"})
    for plain, design, why in (
        (deployed(ranks=1), SmartNic(), "links join all"),
        (linked, SmartNic(adapter="u280"), "links join all"),
        (deployed(), SmartNic(adapter="connectx-7"), "no memory for rows"),
        (deployed().with_(placement=on_host), SmartNic(), "whole or in columns"),
        (deployed(), SmartNic(cache_gib=0), "no rows in adapters are asked for"),
        (deployed(train=True), SmartNic(), "training would write the rows"),
    ):
        found = design.apply(plain)
        assert replace(found, notes=()) == replace(plain, notes=())
        assert "not applied" in found.notes[-1]
        assert why in found.notes[-1]


def test_deployments_that_make_no_sense_say_why() -> None:
    with pytest.raises(WorkloadError, match="has 8 GiB"):
        SmartNic(cache_gib=100).apply(deployed())
    with pytest.raises(UsageError, match="'a100-sxm-40gb': unknown: one of bluefield-2, "):
        SmartNic(adapter="a100-sxm-40gb")


@pytest.mark.parametrize(("pooling", "alpha"), [(1, 0.2), (1, 1.2), (4, 0.8), (15.8, 1.09)])
def test_it_is_never_slower_than_without(pooling: float, alpha: float) -> None:
    workload = MINE.with_(table__pooling=pooling, table__alpha=alpha)
    plain = deployed(workload, ranks=4)
    _, found = fastest(SmartNic(cache_gib=0.25), plain)
    assert found.results[0].step_us <= predict(plain).results[0].step_us * (1 + 1e-9)


def test_the_wire_stays_and_what_was_set_reaches_a_named_adapter() -> None:
    nodes = cluster("dgx-a100-40gb", 2)
    slow = with_settings(nodes, ["nic.memory_gb_per_s=50", "nic.engine_rows_per_us=7"])
    other = SmartNic(adapter="bluefield-3")
    usual, changed = (other._machine(each).node.nic for each in (nodes, slow))
    assert usual is not None
    assert changed is not None
    assert nodes.node.nic is not None
    assert usual.gb_per_s == changed.gb_per_s == nodes.node.nic.gb_per_s
    assert usual.memory_gb_per_s == load("bluefield-3", "nic").memory_gb_per_s  # type: ignore[union-attr]
    assert (changed.memory_gb_per_s, changed.engine_rows_per_us) == (50, 7)


def nic_us(design: SmartNic, **figures: float) -> float:
    """The adapters' work in an inference step of the first rank."""
    found = design.apply(deployed(ranks=4))
    nic = replace(load("u280"), **figures)  # type: ignore[type-var]
    node_ = replace(found.machine.node, nic=nic)
    result = predict(found.with_(machine=replace(found.machine, node=node_))).results[0]
    return float(next(row["time_us"] for row in result.families if row["family"] == "nic"))


@pytest.mark.parametrize("figure", ["engine_rows_per_us", "descriptors_per_us", "memory_gb_per_s"])
def test_less_of_an_adapter_takes_longer(figure: str) -> None:
    design = SmartNic(cache_gib=2)
    assert nic_us(design, **{figure: 20.0}) > 1.5 * nic_us(design)
