"""2D sharding: copies of tables in groups of ranks, what they take, and what averaging costs."""

from __future__ import annotations

from functools import cache

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.composed import composed
from perfmodel.designs.training_systems import TwoDSharding
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.prediction.step import steps_of
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload
from perfmodel.workload.memory_tiers import tier_use

NODES, RANKS = 4, 32


@cache
def start(*, train: bool = True, nodes: int = NODES) -> Deployment:
    workload = load_workload("dlrm-dcnv2").with_(training__table_optimizer="rowwise_adagrad")
    machine = cluster("dgx-a100-80gb", nodes)
    return deployment_of(workload, machine, 1_728 * machine.gpus, train=train)


@cache
def result(sync_every: int, group_ranks: int = 8) -> Result:
    design = TwoDSharding(group_ranks=group_ranks, sync_every=sync_every)
    return predict(design.apply(start())).results[0]


def test_one_group_of_all_ranks_is_the_deployment_as_it_is() -> None:
    found = TwoDSharding(group_ranks=RANKS).apply(start())
    assert (found.placement, found.pipeline, found.phases) == (
        start().placement,
        start().pipeline,
        (),
    )


def test_a_group_holds_what_a_machine_of_its_size_would() -> None:
    """Four copies on 32 ranks: each rank has what each of 8 ranks would have with one."""
    found, alone = TwoDSharding().apply(start()), start(nodes=1)
    uses = [tier_use(each.workload, each.placement, each.machine)[0] for each in (found, alone)]
    assert uses[0].tables_bytes == uses[1].tables_bytes


@pytest.mark.parametrize("group_ranks", [4, 2])
def test_groups_within_a_node_have_a_copy_each_in_its_memory(group_ranks: int) -> None:
    small = start(nodes=1)
    workload = small.workload.with_(table__rows=100_000)
    small = deployment_of(workload, small.machine, small.batch)
    found = TwoDSharding(group_ranks=group_ranks).apply(small)
    hosted = found.placement.edited(lambda *_: {"tier": "host"})
    (node,) = [use for use in tier_use(found.workload, hosted, found.machine) if use.tier == "host"]
    one = sum(table.rows * (4 * table.dim + 4) for table in found.workload.tables)
    assert node.tables_bytes == 8 // group_ranks * one


def test_exchanges_stay_in_a_group_and_layers_are_of_all_ranks() -> None:
    found = TwoDSharding(sync_every=2).apply(start())
    sizes = []
    for phase, step in steps_of(found):
        about = [op.attributes for op in step.graph(0).ops if "collective" in op.attributes]
        assert {it["group_size"] for it in about if it["collective"] == "all_to_all"} == {"8"}
        sizes.append({it["group_size"] for it in about if it["collective"] == "all_reduce"})
        assert phase.steps_frac == pytest.approx(0.5)
    assert sizes == [{"32", "4"}, {"32"}]


def test_averaging_takes_what_an_all_reduce_of_a_ranks_rows_takes() -> None:
    """Of B bytes 2 (4 - 1) / 4 B pass each adapter; at 25 GB/s.
    Every k-th step averages, so a step takes 1 / k of what that adds."""
    held = tier_use(start().workload, TwoDSharding().apply(start()).placement, start().machine)
    least_us = 1.5 * held[0].tables_bytes / 25e9 * 1e6
    every, second, seldom = (result(often).step_us for often in (1, 2, 1_000_000))
    assert (every - seldom) / least_us == pytest.approx(1.0, abs=0.1)
    assert second == pytest.approx((every + seldom) / 2, rel=1e-4)


def test_small_groups_exchange_less_far_and_hold_more() -> None:
    """Without the averaging; 16 ranks are two nodes."""
    steps = [result(1_000_000, ranks).step_us for ranks in (8, 16)]
    assert steps[0] < steps[1]
    held = [(result(1_000_000, ranks).memory or {})["tables_bytes"] for ranks in (8, 16)]
    assert held[0] > 1.5 * held[1]


def test_inference_averages_nothing() -> None:
    found = TwoDSharding().apply(start(train=False))
    assert not found.pipeline.averages_copies
    assert predict(found).results[0].step_us < predict(start(train=False)).results[0].step_us


@pytest.mark.parametrize(("group_ranks", "message"), [(3, "do not divide"), (64, "do not divide")])
def test_groups_that_do_not_divide_the_ranks_are_refused(group_ranks: int, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        TwoDSharding(group_ranks=group_ranks).apply(start())


def test_copies_are_of_tables_in_device_memory() -> None:
    with pytest.raises(WorkloadError, match="tables in device memory"):
        composed("software_cache+two_d_sharding").apply(start())
    moved = composed("two_d_sharding+software_cache").apply(start())
    with pytest.raises(WorkloadError, match="beyond device memory are not averaged"):
        predict(moved)
