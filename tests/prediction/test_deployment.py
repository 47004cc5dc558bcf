"""Deployments predicted: what holds for every placement, whatever lies where."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.designs import Deployment, deployment_of
from perfmodel.embedding import Pipeline, Placement, TablePlacement
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, cluster
from perfmodel.lowering import lower
from perfmodel.prediction import Result, predict
from perfmodel.workload import Workload, load_workload, op_graph

TABLES = 26
KINDS = ["table_wise", "row_wise", "column_wise", "data_parallel"]


def workload(pooling: float = 1.0, rows: int = 100_000) -> Workload:
    found = load_workload("criteo-kaggle").with_(implementation__name="torchrec")
    return found.with_(table__rows=rows, table__pooling=pooling)


def machine(gpus: int = 4, nodes: int = 1) -> Cluster:
    one = cluster("dgx-a100-80gb", nodes)
    return replace(one, node=replace(one.node, gpus=gpus))


def deployed(pooling: float = 1.0, batch: int = 2048, **placed: object) -> Deployment:
    found = deployment_of(workload(pooling), machine(), batch)
    return found.with_(placement=found.placement.edited(lambda _number, _table: placed))


def result(deployment: Deployment) -> Result:
    return predict(deployment).results[0]


def families(found: Result) -> dict[str, float]:
    return {row["family"]: row["time_us"] for row in found.families}


def test_a_workload_is_the_special_case() -> None:
    found = deployment_of(workload(), machine())
    alone = predict(workload(), hardware=[machine()]).results[0]
    assert result(found).step_us == pytest.approx(alone.step_us, rel=1e-12)


def test_the_host_decides_where_it_has_most_to_do() -> None:
    host = {"tier": "host", "pooled_on": "host", "sharding": "data_parallel", "ranks": (0, 1, 2, 3)}
    near = deployment_of(workload(100.0, rows=50_000_000), machine(), 16384)
    far = near.with_(placement=near.placement.edited(lambda _n, _t: host))
    assert result(far).step_us > 1.3 * result(near).step_us
    bound = result(far).bound_by
    assert bound is not None
    assert max(bound, key=lambda name: bound[name]) == "host memory"


def with_dram(deployment: Deployment, factor: float) -> Deployment:
    node = deployment.machine.node
    host = replace(node.host, dram_gb_per_s=node.host.dram_gb_per_s * factor)
    return replace(deployment, machine=replace(deployment.machine, node=replace(node, host=host)))


@pytest.mark.parametrize("way", [{"pooled_on": "host"}, {}], ids=["pooled", "over the bus"])
def test_slower_host_memory_is_never_faster(way: dict[str, object]) -> None:
    deployment = deployed(50.0, 8192, tier="host", **way)
    steps = [result(with_dram(deployment, factor)).step_us for factor in (0.1, 0.5, 1.0, 4.0)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 1.5 * steps[-1]


def test_writes_behind_are_never_slower() -> None:
    deployment = deployed(50.0, 8192, tier="host", pooled_on="host")
    behind = deployment.with_(pipeline=Pipeline(writes_behind=True))
    assert result(behind).step_us < result(deployment).step_us


@st.composite
def placements(draw: st.DrawFn, ranks: int) -> Placement:
    every = tuple(range(ranks))
    tables = []
    for _ in range(TABLES):
        kind: Any = draw(st.sampled_from(KINDS))
        whole = (draw(st.integers(0, ranks - 1)),)
        tier: Any = draw(st.sampled_from(["hbm", "host"]))
        pooled: Any = draw(st.sampled_from(["device", "host"])) if tier == "host" else "device"
        tables.append(
            TablePlacement(
                kind, whole if kind == "table_wise" else every, tier=tier, pooled_on=pooled
            )
        )
    return Placement(tuple(tables))


@given(st.data(), st.sampled_from([2, 4]))
@settings(max_examples=15, deadline=None)
def test_what_is_sent_is_received(data: st.DataObject, ranks: int) -> None:
    placement = data.draw(placements(ranks))
    sent: dict[tuple[int, int, int], int] = {}
    got: dict[tuple[int, int, int], int] = {}
    counts = set()
    for rank in range(ranks):
        graph = op_graph(workload(), ranks=ranks, rank=rank, placement=placement)
        calls = [op for op in graph.ops if op.name.startswith("c10d::")]
        counts.add(tuple(op.attributes["collective"] for op in calls))
        for number, op in enumerate(calls):
            if "in_split" not in op.attributes:
                continue
            splits = (op.attributes[name].split(",") for name in ("in_split", "out_split"))
            for peer, (there, here) in enumerate(zip(*splits, strict=True)):
                sent[number, rank, peer] = int(there)
                got[number, peer, rank] = int(here)
    assert len(counts) == 1
    assert sent == got


@pytest.mark.slow
@given(st.data())
@settings(max_examples=5, deadline=None)
def test_any_placement_is_predicted_and_fits_its_tiers(data: st.DataObject) -> None:
    placement = data.draw(placements(4))
    deployment = replace(deployed(), placement=placement)
    found = result(deployment)
    assert found.memory is not None
    for use in found.memory["tiers"]:
        assert use["total_bytes"] <= use["capacity_bytes"]
    tiers = {use["tier"]: use["tables_bytes"] for use in found.memory["tiers"]}
    assert (tiers.get("host", 0.0) > 0) == any(t.tier == "host" for t in placement.tables)


def test_more_memory_never_hurts() -> None:
    deployment = deployed()
    node = deployment.machine.node
    larger = replace(node, device=replace(node.device, hbm_bytes=2 * node.device.hbm_bytes))
    there = replace(deployment, machine=replace(deployment.machine, node=larger))
    assert result(there).step_us == pytest.approx(result(deployment).step_us)
    tiny = replace(node, device=replace(node.device, hbm_bytes=50_000_000))
    with pytest.raises(WorkloadError, match="of device memory"):
        predict(replace(there, machine=replace(there.machine, node=tiny)))


def test_tables_that_are_trained_have_one_copy() -> None:
    found = deployment_of(workload(), machine(4, 2))
    ranks = tuple(range(8))
    shared = found.placement.edited(
        lambda _n, _t: {"sharding": "data_parallel", "ranks": ranks, "tier": "host"}
    )
    with pytest.raises(WorkloadError, match=r"tables\[0\].* of 2 nodes"):
        predict(found.with_(placement=shared))
    assert predict(found.with_(placement=shared, train=False)).results[0].step_us > 0


def test_a_placement_of_other_tables_is_refused() -> None:
    deployment = deployed()
    fewer = Placement(deployment.placement.tables[:-1])
    with pytest.raises(WorkloadError, match="it is of 25 tables, criteo-kaggle has 26"):
        predict(replace(deployment, placement=fewer))


def test_what_the_host_costs_fades_beside_dense_work() -> None:
    host = {"tier": "host", "pooled_on": "host", "sharding": "data_parallel", "ranks": (0, 1, 2, 3)}

    def slower(width: int) -> float:
        model = {"model__top_mlp": [width, width, 1], "implementation__precision": "fp32"}
        dense = workload(20.0).with_(**model)
        near = deployment_of(dense, machine(), 8192)
        far = near.with_(placement=near.placement.edited(lambda _n, _t: host))
        return result(far).step_us / result(near).step_us

    ratios = [slower(width) for width in (512, 4096, 16384)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(1.0, abs=0.1)


def test_pooled_rows_go_to_the_device_and_their_gradients_come_back() -> None:
    deployment = deployed(tier="host", pooled_on="host")
    graph = op_graph(workload(), ranks=4, placement=deployment.placement)
    moved = {"copy_h2d": 0.0, "copy_d2h": 0.0}
    own = sum(len(table.ranks) and table.ranks[0] == 0 for table in deployment.placement.tables)
    for piece in lower(graph, "cuda").pieces:
        if piece.op in moved and piece.dtype == "fp32":
            moved[piece.op] += piece.dims["elements"]
    pooled = own * 2048 * workload().dim
    assert moved["copy_d2h"] == pooled
    assert moved["copy_h2d"] == pooled + 512 * 13


def test_its_json_is_what_the_schema_says() -> None:
    answer = predict(deployed(tier="host")).to_dict()
    schema = Path(__file__).parents[2] / "docs" / "schemas" / "prediction.json"
    jsonschema.validate(json.loads(json.dumps(answer)), json.loads(schema.read_text()))
    assert [each["tier"] for each in answer["results"][0]["memory"]["tiers"]] == ["hbm", "host"]
