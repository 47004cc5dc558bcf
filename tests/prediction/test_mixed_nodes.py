"""Clusters whose nodes are of several kinds, against equal ones and against hand calculations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.cost.collectives.calls import fabric_of
from perfmodel.designs import deployment_of
from perfmodel.errors import HardwareError, WorkloadError
from perfmodel.explore.planner.search import search
from perfmodel.explore.planner.surrogate import surrogate
from perfmodel.hardware import Cluster, Node, cluster, load
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.hardware.reads import figure_values
from perfmodel.prediction import predict
from perfmodel.prediction.running_cost import Activity, operating_costs
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.memory_tiers import greedy_placement, require_tiers, tier_use

A100 = replace(cluster("dgx-a100-80gb").node, gpus=1)


def changed(**figures: object) -> Node:
    """A node of one A100 that differs in figures of its device."""
    return replace(A100, device=replace(A100.device, **figures))  # type: ignore[arg-type]


def mixed(first: Node, last: Node, name: str = "mixed") -> Cluster:
    """A node of each kind."""
    return Cluster(name=name, node=first, nodes=2, others=Cluster(name=name, node=last, nodes=1))


def workload(rows: int = 100_000, count: int = 8) -> Workload:
    found = load_workload("dlrm-dcnv2").with_(implementation__name="torchrec")
    table = replace(found.tables[0], rows=rows, dim=128, pooling=20.0)
    return replace(found, tables=(table,) * count)


def step_us(machine: Cluster, batch: int = 32_768) -> float:
    return predict(workload(), hardware=[machine], batch=batch).results[0].step_us


def test_equal_kinds_are_one_kind() -> None:
    same = mixed(A100, A100)
    assert same.gpus == 2
    assert step_us(same) == pytest.approx(step_us(cluster(A100, 2)), rel=1e-9)


def test_each_phase_waits_for_the_kind_that_is_slower_in_it() -> None:
    """One kind has a quarter of the memory's bandwidth, the other an eighth of the products' rate:
    more than either alone, less than both one after the other."""
    slow_rows = changed(hbm_gb_per_s=A100.device.hbm_gb_per_s / 4)
    slow_layers = changed(fp16_tflop_per_s=(A100.device.fp16_tflop_per_s or 0) / 8)
    alone = [step_us(cluster(each, 2)) for each in (slow_rows, slow_layers)]
    both = step_us(mixed(slow_rows, slow_layers))
    assert 1.05 * max(alone) < both < sum(alone)
    assert step_us(mixed(slow_layers, slow_rows)) == pytest.approx(both, rel=0.02)


def test_collectives_take_the_slower_wires() -> None:
    assert A100.nic is not None
    slower = replace(A100, nic=replace(A100.nic, gb_per_s=A100.nic.gb_per_s / 2))
    fabrics = [fabric_of(each) for each in (mixed(A100, slower), cluster(slower, 2))]
    assert fabrics[0] == fabrics[1]
    assert step_us(mixed(A100, slower)) == pytest.approx(step_us(cluster(slower, 2)), rel=1e-6)


def test_memory_is_each_ranks_own() -> None:
    """85.9 and 40 GB less a tenth and what the driver takes: of ten tables of 10.24 GB (4 bytes x
    128 x 2 x 10^7 rows) seven and three fit."""
    small, tables = changed(hbm_bytes=40_000_000_000), workload(rows=20_000_000, count=10)
    machine = mixed(A100, small)
    placement = greedy_placement(tables, machine, train=False)
    assert placement is not None
    owners = [table.ranks[0] for table in placement.tables]
    assert (owners.count(0), owners.count(1)) == (7, 3)
    moved = placement.edited(lambda number, _: {"ranks": (1,)} if number < 4 else {"ranks": (0,)})
    require_tiers(tier_use(tables, placement, machine, train=False))
    with pytest.raises(WorkloadError, match=r"more than the 40\.0 GB of a100"):
        require_tiers(tier_use(tables, moved, machine, train=False))


def test_power_and_money_add_up() -> None:
    both = operating_costs(mixed(A100, replace(A100, price_usd=1e5)))
    one = operating_costs(cluster(A100))
    busy = Activity()
    assert both.power_w(busy) == pytest.approx(2 * float(one.power_w(busy)))
    priced = [operating_costs(cluster(replace(A100, price_usd=usd))) for usd in (1e5, 3e5)]
    joined = operating_costs(mixed(replace(A100, price_usd=1e5), replace(A100, price_usd=3e5)))
    apart = sum(float(each.usd_per_hour(each.power_w(busy)) or 0.0) for each in priced)
    assert joined.usd_per_hour(joined.power_w(busy)) == pytest.approx(apart)


def test_the_planner_gives_faster_nodes_more_lookups() -> None:
    """One device reads at half the other's rate. Where both end together, the slow one is ahead of
    the other by its layers and by what its tables take longer."""
    slow = changed(hbm_gb_per_s=A100.device.hbm_gb_per_s / 2, l2_gb_per_s=None)
    problem = surrogate(deployment_of(workload(), mixed(A100, slow), 65_536))
    assert problem.ahead_us[0] == 0.0 < problem.ahead_us[1]
    found = search(problem)[0]
    blind = search(replace(problem, ahead_us=()))[0]
    fast_us, slow_us = found.held[:, 0] - problem.ahead_us
    assert slow_us < 0.9 * fast_us
    assert found.step_us < 0.95 * replace(blind, problem=problem).step_us


FILE = """kind = "cluster"
node = "dgx-a100-80gb"
nodes = 4
[others]
"""


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ('node = "dgx-h100"\nnodes = 4', "nodes, which counts all, to be more than others.nodes"),
        ('nodes = 2\n[others.node]\nextends = "dgx-h100"\ngpus = 4', "as many devices per node"),
        (
            'node = "hotline-cpus"\nnodes = 2',
            "as many devices per node as node, of the same target",
        ),
        ('node = "p4d"\nnodes = 2', "adapters of one network"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, others: str, said: str) -> None:
    path = tmp_path / "my.toml"
    path.write_text(FILE + others + "\n")
    with pytest.raises(HardwareError, match=said) as caught:
        load(path)
    assert "my.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_two_kinds(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(FILE + 'node = "dgx-h100"\nnodes = 1\n')
    machine = cluster(path)
    assert [len(ranks) for _, ranks in machine.kinds] == [24, 8]
    seen = machine.seen_by(24)
    assert (seen.node.name, seen.gpus, seen.kinds[1][0].name) == ("dgx-h100", 32, "dgx-a100-80gb")
    assert figure_values(machine)["device.hbm_gb_per_s"] == A100.device.hbm_gb_per_s
    with pytest.raises(HardwareError, match="a trace needs equal ones"):
        equal_nodes(machine, "a trace")
    with pytest.raises(HardwareError, match="my: expected nodes, which counts all"):
        cluster(path, 1)
