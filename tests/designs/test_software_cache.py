"""Software caches: what they save, cost and refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.designs.cached_tables import SoftwareCache
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.embedding import Placement
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load, node_of
from perfmodel.hardware.parts import Device
from perfmodel.lowering import lower
from perfmodel.prediction import predict
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.sharding import plan
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.source import groups_of, row_cache_use

BATCH = 4_096
CACHED_EMBEDDING = SoftwareCache("operators", 0.2, "static")
"""As its benchmark runs it: the most popular rows of the data set stay."""


def deployment(alpha: float = 1.05, rows: int = 2_000_000, batch: int = BATCH) -> Deployment:
    """Four tables of 128 elements on one A100."""
    text = f"""
batch = {batch}
[model]
dense_features = 13
bottom_mlp = [64, 128]
top_mlp = [64, 1]
[[tables]]
count = 4
rows = {rows}
dim = 128
pooling = 10
alpha = {alpha}
[implementation]
name = "torchrec"
prefetch = true
"""
    path = Path(PATH[0]) / f"w{alpha}-{rows}-{batch}.toml"
    path.write_text(text)
    device = load("a100-sxm-80gb")
    assert isinstance(device, Device)
    machine = cluster(replace(node_of(device), gpus=1))
    return deployment_of(load_workload(path), machine)


PATH = ["."]


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    PATH[0] = str(tmp_path_factory.mktemp("workloads"))


def step_us(found: Deployment) -> float:
    return predict(found).results[0].step_us


def bus_elements(found: Deployment) -> float:
    """Elements of rows that come over the bus per step."""
    graph = op_graph(
        found.workload, found.batch, placement=found.placement, pipeline=found.pipeline
    )
    pieces = lower(graph, "cuda").pieces
    return sum(p.dims["elements"] for p in pieces if p.op == "copy_h2d" and p.kind == "kernel")


@pytest.mark.parametrize("design", [SoftwareCache(), CACHED_EMBEDDING])
def test_tables_in_device_memory_are_never_slower(design: SoftwareCache) -> None:
    plain = deployment()
    assert step_us(design.apply(plain)) > step_us(plain)


@pytest.mark.parametrize(("optimizer", "of_states"), [("adam", 1024.0), ("rowwise_adagrad", 0.0)])
def test_states_per_element_stay_in_host_memory(optimizer: str, of_states: float) -> None:
    """FBGEMM caches rows alone: Adam's two moments of a row pass the bus, one number is on the
    device."""
    plain = deployment()
    training = plain.workload.with_(training__table_optimizer=optimizer)
    found = SoftwareCache().apply(plain.with_(workload=training))
    graph = op_graph(training, found.batch, placement=found.placement, pipeline=found.pipeline)
    (update,) = (p for p in lower(graph, "cuda").pieces if p.direction == "bwd" and "tbe" in p.op)
    if of_states:
        assert (update.op, update.dims["row_bytes"]) == ("tbe_host", of_states)
    else:
        assert update.op == "tbe"
        assert update.dims["state_bytes"] == pytest.approx(4.0)


def test_skew_saves_misses() -> None:
    moved = [
        bus_elements(SoftwareCache(cache_frac=0.1).apply(deployment(alpha)))
        for alpha in (0.0, 0.8, 1.2)
    ]
    assert moved[0] > moved[1] > moved[2] > 0


def test_without_reuse_a_cache_holds_its_share_of_the_rows_and_no_more() -> None:
    """Uniform lookups of 8 million rows: nearly all distinct, and a tenth of them cached."""
    moved = bus_elements(SoftwareCache(cache_frac=0.1).apply(deployment(0.0)))
    tables = deployment(0.0).workload.tables
    distinct = sum(table.unique_rows(BATCH) for table in tables)
    assert moved / 128 == pytest.approx(0.9 * distinct, rel=0.02)


def test_memory_of_the_frequency_aware_cache() -> None:
    """Of C of E rows of D elements C (4 D + 8) + 16 E: maps have int64 for rows and places."""
    plain, cached = deployment(), replace(CACHED_EMBEDDING, cache_frac=0.1).apply(deployment())
    memory = predict(cached).results[0].memory
    before = predict(plain).results[0].memory
    assert memory is not None
    assert before is not None
    rows = 8_000_000
    saved = rows * 512 - (0.1 * rows * (4 * 128 + 8) + 16 * rows)
    kept = before["total_bytes"] - memory["total_bytes"]
    assert kept == pytest.approx(saved, rel=0.05)


def test_rows_of_a_batch_must_fit() -> None:
    by_operators = SoftwareCache("operators", 0.0001, "static").apply(deployment(0.0))
    with pytest.raises(WorkloadError, match=r"one batch take .* or a smaller batch"):
        predict(by_operators)


def test_fetching_beside_the_step_before_hides_it() -> None:
    waits, ahead = (
        step_us(SoftwareCache(cache_frac=0.1, rows_ahead=rows_ahead).apply(deployment(0.6)))
        for rows_ahead in (False, True)
    )
    assert ahead < waits


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cache_frac": 1.5}, "cache_frac: .*to 1, got 1.5"),
        ({"cache_frac": -1.0}, "cache_frac: .*got -1"),
        ({"policy": "random"}, "unknown policy"),
        ({"kept_by": "nobody"}, "kept_by"),
        ({"kept_by": "operators", "rows_ahead": True}, "no rows are fetched beside"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, object], word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        SoftwareCache(**changes)  # type: ignore[arg-type]


def test_what_a_cache_costs_matters_less_with_more_dense_work() -> None:
    def slowdown(width: int) -> float:
        plain = deployment()
        model = replace(plain.workload.model, top_mlp=(width, width, 1))
        plain = plain.with_(workload=replace(plain.workload, model=model))
        return step_us(SoftwareCache(cache_frac=0.1).apply(plain)) / step_us(plain)

    assert slowdown(64) > slowdown(4_096) > slowdown(16_384) > 1
    assert slowdown(16_384) < 1.1


@given(st.floats(0.01, 1.0), st.floats(0.0, 1.3), st.sampled_from(["lru", "lfu", "static"]))
@settings(max_examples=15)
def test_capacity_is_never_exceeded(frac: float, alpha: float, policy: str) -> None:
    plain = deployment(round(alpha, 2), batch=64)
    found = SoftwareCache(cache_frac=frac, policy=policy).apply(plain)
    run = Run(found.workload, 64, 1, 0, "cuda", True, plan(found.workload, 1), 1, found.placement)
    (group,) = groups_of(run)
    use = row_cache_use(group, "rows")
    cache = found.placement.caches[0]
    assert use.held_rows * use.row_bytes <= cache.capacity_bytes * (1 + 1e-6)
    assert use.missed_rows <= use.unique_rows * (1 + 1e-9)


def test_replicas_stay_where_they_are() -> None:
    plain = deployment()
    replicas = plain.placement.edited(
        lambda number, _: {"sharding": "data_parallel"} if number < 2 else {}
    )
    found = SoftwareCache().apply(plain.with_(placement=replicas)).placement
    assert [table.tier for table in found.tables] == ["hbm", "hbm", "host", "host"]


def test_a_cpu_has_nothing_closer_than_host_memory() -> None:
    plain = deployment()
    on_cpu = plain.with_(machine=cluster("epyc-7742"))
    with pytest.raises(WorkloadError, match="CPU"):
        SoftwareCache().apply(on_cpu)


def test_nothing_to_cache() -> None:
    plain = deployment()
    on_host = plain.placement.edited(lambda *_: {"tier": "host"})
    assert isinstance(on_host, Placement)
    with pytest.raises(WorkloadError, match="no table"):
        SoftwareCache().apply(plain.with_(placement=on_host))
