"""Plans of workloads: scheduled in full, explained, written, read, refused where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.published.torchrec_formulas import torchrec_plan
from benchmarks.streams import read_histograms
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.layouts.problem import ANY, GROUP, Layout, Problem
from perfmodel.designs.layouts.search import lower_bound, placement_of, search
from perfmodel.designs.layouts.surrogate import problems
from perfmodel.embedding import population
from perfmodel.errors import WorkloadError
from perfmodel.explore.planner import Plan, plan_deployment
from perfmodel.explore.torchrec import read_plan, torchrec_document
from perfmodel.hardware import Cluster, cluster, load
from perfmodel.prediction import predict
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.tables import Table

TABLES = (
    Table(2_000_000, 64, 30.0, 1.05),
    Table(500_000, 64, 2.0),
    Table(100, 64, 1.0),
    *(Table(200_000, 64, 5.0, 0.9),) * 5,
)


def machine() -> Cluster:
    return cluster(load("dgx-a100-80gb"), 1)


def workload() -> Workload:
    made = replace(load_workload("neo-i"), name="small", tables=TABLES, batch=4096)
    return made.with_(model__bottom_mlp=[64], model__top_mlp=[64, 1])


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return deployment_of(workload(), machine())


@pytest.fixture(scope="module")
def planned(deployment: Deployment) -> Plan:
    return plan_deployment(deployment)


@pytest.mark.slow
def test_the_search_orders_random_plans_as_the_schedule_does() -> None:
    """25 random plans of a model that its kernels bound: table 20 has half of all lookups, parts
    of other tables are narrower."""
    start = deployment_of(load_workload("dlrm-dcnv2"), machine())
    made, draw = next(problems(start)), np.random.default_rng(0)
    quick, full = [], []
    while len(full) < 25:
        layout = _random_layout(made, draw)
        if layout.fits:
            placed = start.with_(placement=placement_of(start, layout))
            quick.append(layout.step_us)
            full.append(predict(placed).results[0].step_us)
    places = [np.argsort(np.argsort(each)) for each in (quick, full)]
    assert np.corrcoef(*places)[0, 1] >= 0.9


def _random_layout(problem: Problem, draw: np.random.Generator) -> Layout:
    split = draw.choice([0.0, 0.1, 0.3, 0.6])
    chosen, ranks = [], []
    for own in problem.of_table:
        fit = own[~problem.too_large[own]]
        whole = fit[problem.parts[fit] == 1]
        choice = int(draw.choice(whole if len(whole) and draw.random() > split else fit))
        parts, reach = int(problem.parts[choice]), int(problem.reach[choice])
        loose = draw.choice(problem.ranks, parts, replace=False)
        group = np.arange(parts) + problem.linked * int(
            draw.integers(problem.ranks // problem.linked)
        )
        where = {ANY: loose, GROUP: group}.get(reach, np.arange(problem.ranks))
        chosen.append(choice)
        ranks.append(tuple(sorted(where.tolist())))
    return Layout(problem, np.array(chosen), tuple(ranks))


@pytest.mark.slow
def test_the_plan_is_no_slower_than_what_was_there(deployment: Deployment, planned: Plan) -> None:
    assert planned.result.step_us <= predict(deployment).results[0].step_us * (1 + 1e-9)
    assert planned.result.step_us == min(each["step_us"] for each in planned.tried)
    assert planned.best.step_us >= planned.bound_us * (1 - 1e-9)


@pytest.mark.slow
def test_rows_by_popularity_are_not_cut_in_blocks() -> None:
    """Of one table of Zipf 1.05 the first of eight blocks has nearly all lookups; rows anywhere
    leave 1.5 times the mean on the busiest rank, and columns four ranks with a quarter each."""
    table = Table(10_000_000, 128, 50.0, 1.05)
    plans = []
    for ids in ("scattered", "by_popularity"):
        made = replace(workload(), tables=(table,), batch=65_536).with_(table__ids=ids)
        plans.append(plan_deployment(deployment_of(made, machine())))
    anywhere, by_popularity = plans
    assert anywhere.placement.tables[0].sharding == "row_wise"
    assert 1.3 < anywhere.imbalance < 1.7
    assert by_popularity.placement.tables[0].sharding == "column_wise"
    assert by_popularity.imbalance == pytest.approx(2.0)
    assert anywhere.result.step_us < by_popularity.result.step_us


def test_every_table_says_why(planned: Plan) -> None:
    assert [row["table"] for row in planned.tables] == list(range(len(TABLES)))
    for row in planned.tables:
        assert any(word in row["why"] for word in ("would add", "would save", "does not fit"))


def test_plans_come_back_as_they_went(planned: Plan, tmp_path: Path) -> None:
    own, torchrec = tmp_path / "plan.json", tmp_path / "torchrec.json"
    own.write_text(json.dumps(planned.to_dict()))
    assert read_plan(own, workload(), machine()) == planned.placement
    document = torchrec_document(planned.placement, workload(), machine())
    torchrec.write_text(json.dumps(document))
    assert read_plan(torchrec, workload(), machine()) == planned.placement


def test_torchrecs_plan_has_its_shards(planned: Plan) -> None:
    tables = torchrec_document(planned.placement, workload(), machine())["sparse.embedding_bags"]
    for number, table in enumerate(TABLES):
        about = tables[f"table_{number}"]
        if about["sharding_spec"] is not None:
            shards = about["sharding_spec"]["shards"]
            held = sum(shard["shard_sizes"][0] * shard["shard_sizes"][1] for shard in shards)
            assert held == table.rows * table.dim


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tables: tables.pop("table_0"), "table_0 is missing$"),
        (lambda tables: tables.update(again_table_0=tables["table_0"]), "table_0 is there twice"),
        (
            lambda tables: tables["table_0"].update(
                sharding_spec={"shards": [{"shard_sizes": [5, 5]}]}
            ),
            "table_0: its shards have 25 elements, the table .*: a plan for other tables",
        ),
        (lambda tables: tables["table_0"].update(sharding_spec={}), "expected shards"),
        (
            lambda tables: tables["table_0"].update(
                sharding_spec={"shards": [{"shard_sizes": [float("inf"), 1]}]}
            ),
            "expected shards",
        ),
        (lambda tables: tables.update(table_1=[1]), "table_1: expected its sharding_type"),
        (
            lambda tables: tables["table_0"].update(
                compute_kernel="fused_uvm_caching", cache_params={"load_factor": 2}
            ),
            "table_0: load_factor 2: expected above 0, at most 1",
        ),
        (lambda tables: tables.update({"table_" + "9" * 5000: {}}), "has no such table"),
    ],
)
def test_torchrecs_plans_for_other_tables_are_refused(
    planned: Plan, change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    document = torchrec_document(planned.placement, workload(), machine())
    change(document["sparse.embedding_bags"])
    file = tmp_path / "torchrec.json"
    file.write_text(json.dumps(document))
    with pytest.raises(WorkloadError, match=message):
        read_plan(file, workload(), machine())


@pytest.mark.parametrize(
    ("kind", "ranks", "columns", "heights", "expected"),
    [
        ("table_column_wise", [1, 1, 2, 2], 4, [1.0] * 4, ("column_wise", (1, 1, 2, 2))),
        ("row_wise", [0, 1, 2], 1, [0.5, 0.5, 0.0], ("row_wise", (0, 1))),
    ],
)
def test_slices_on_one_rank_are_one_and_shards_without_rows_none(
    planned: Plan,
    kind: str,
    ranks: list[int],
    columns: int,
    heights: list[float],
    expected: tuple[str, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    document = torchrec_document(planned.placement, workload(), machine())
    table = TABLES[0]
    shards = [
        {"shard_sizes": [int(table.rows * height), table.dim // columns]} for height in heights
    ]
    document["sparse.embedding_bags"]["table_0"] |= {
        "sharding_type": kind,
        "ranks": ranks,
        "sharding_spec": {"shards": shards},
    }
    file = tmp_path / "torchrec.json"
    file.write_text(json.dumps(document))
    found = read_plan(file, workload(), machine()).tables[0]
    assert (found.sharding, found.ranks) == expected


def test_no_slower_than_the_best_by_torchrecs_formulas(
    deployment: Deployment, planned: Plan
) -> None:
    assert planned.result.step_us <= torchrec_plan(deployment).step_us * 1.001


@pytest.mark.slow
def test_tables_beyond_device_memory_go_to_the_hosts() -> None:
    tables = (Table(400_000_000, 128, 2.0, 1.05),) * 9
    start = deployment_of(replace(workload(), tables=tables), machine())
    found = plan_deployment(start.with_(placement=start.placement), verified=2)
    assert "host" in {placed.tier for placed in found.placement.tables} <= {"hbm", "host"}
    assert found.placement.caches[0].policy == "lru"
    assert all(tier["fits"] for tier in (found.result.memory or {})["tiers"])


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "most"), [(1, 1.1), (2, 1.2)])
def test_dcnv2_is_near_its_bound(nodes: int, most: float) -> None:
    """Of two nodes one holds the largest table by itself: their ranks differ, and work, rows and
    keys each wait for another."""
    start = deployment_of(load_workload("dlrm-dcnv2"), cluster(load("dgx-a100-80gb"), nodes))
    best = search(next(problems(start)))[0]
    assert best.fits
    assert best.step_us <= most * lower_bound(best.problem)


def test_a_batch_that_leaves_no_room_is_named() -> None:
    start = deployment_of(workload(), machine(), 2**29)
    with pytest.raises(WorkloadError, match=r"what would do: a batch of [\d,]+"):
        plan_deployment(start)


def test_too_many_tables_say_by_how_much() -> None:
    tables = (Table(400_000_000, 128, 2.0, 1.05),) * 60
    with pytest.raises(WorkloadError, match=r"need .* GB of device memory, .* GB more than"):
        plan_deployment(deployment_of(replace(workload(), tables=tables), machine()))


TABLE = {"sharding": "table_wise", "ranks": [0]}
CACHE = {"name": "c", "at": "hbm", "capacity_bytes": 1e5}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"schema": "other/1"}, "no plan: expected the schema perfmodel.plan/1"),
        ({"tables": []}, "it is of 0 tables"),
        ({"tables": [{"ranks": [0]}]}, r"tables\[0\]: sharding is missing"),
        ({"tables": [{"sharding": "even", "ranks": [0]}]}, r"tables\[0\]: sharding: expected one"),
        ({"tables": [TABLE | {"caches": 3}]}, r"tables\[0\]: caches: expected a list of texts"),
        ({"tables": [TABLE | {"teir": "host"}]}, r"tables\[0\]: unknown key teir; expected: tier"),
        ({"tables": [TABLE | {"ranks": ["a"]}]}, "whole number"),
        ({"tables": [TABLE | {"rows": 5}]}, "other tables"),
        ({"tables": [TABLE | {"table": 1}]}, "table 1, but small"),
        ({"caches": [{"size": 3}]}, r"caches\[0\]: unknown key size"),
        ({"caches": [CACHE | {"name": ["c"]}]}, r"caches\[0\]: name: expected a text"),
        ({"caches": [CACHE | {"policy": "mru"}]}, "json: .*unknown cache policy 'mru'"),
        ({"other": {"table_0": {"sharding_type": "row_wise"}}, "x": 5}, "schema: expected its tab"),
    ],
)
def test_what_is_no_plan_is_refused(
    planned: Plan, tmp_path: Path, edit: dict[str, object], message: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**planned.to_dict(), **edit}))
    with pytest.raises(WorkloadError, match=message):
        read_plan(path, workload(), machine())


def test_ranks_out_of_range_and_broken_files_are_named(planned: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    document = json.loads(json.dumps(planned.to_dict()))
    document["tables"][0] |= {"sharding": "table_wise", "ranks": [99]}
    path.write_text(json.dumps(document))
    with pytest.raises(WorkloadError, match=r"plan.json: .*tables\[0\]: rank 99"):
        read_plan(path, workload(), machine())
    document["tables"][0] |= {"ranks": [0], "hot_rows": 2_000_001}
    path.write_text(json.dumps(document))
    with pytest.raises(WorkloadError, match=r"tables\[0\]: 2000001 hot rows of 2000000"):
        read_plan(path, workload(), machine())
    path.write_text("{")
    with pytest.raises(WorkloadError, match="not JSON"):
        read_plan(path, workload(), machine())


def test_tables_larger_than_any_tier_say_by_how_much() -> None:
    """10^13 rows of 64 fp16 elements and 4 bytes of state: 132 bytes."""
    huge = replace(workload(), tables=(Table(10**13, 64),))
    with pytest.raises(WorkloadError, match=r"tables need 1,320,000\.0 GB"):
        plan_deployment(deployment_of(huge.with_(implementation__sharding="row_wise"), machine()))


@pytest.mark.slow
def test_better_than_torchrecs_plan_on_production_locality(reference: Path) -> None:
    """120 tables with the reuse of Meta's datasets on 128 GPUs, by the predicted step."""
    import numpy as np

    histograms = read_histograms(reference / "locality" / "locality.csv")
    names, draw = sorted(histograms), np.random.default_rng(2)
    seen = {}
    tables = []
    for _ in range(120):
        name = names[draw.integers(len(names))]
        if name not in seen:
            found = population(histograms[name])
            rows = found.rows / found.rows.sum()
            seen[name] = tuple(zip(found.share.tolist(), rows.tolist(), strict=True))
        rows, dim = int(10 ** draw.uniform(4, 7.3)), int(draw.choice([32, 64, 128]))
        pooling = float(np.clip(draw.lognormal(1.5, 1.2), 1, 150))
        pairs = tuple(pair for pair in seen[name] if min(pair) > 0)
        tables.append(Table(rows, dim, pooling, histogram=pairs))
    mixed = replace(load_workload("neo-i"), name="mix", tables=tuple(tables), batch=16_384)
    mixed = mixed.with_(model__bottom_mlp=[512, 128], model__top_mlp=[512, 256, 1])
    start = deployment_of(mixed, cluster(load("zionex-16")))
    ours = plan_deployment(start)
    assert ours.result.step_us < 0.95 * torchrec_plan(start).step_us
    assert ours.gap_frac < 0.05
