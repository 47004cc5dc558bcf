"""Tables on drives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.designs.cached_tables import SoftwareMemory
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load, node_of
from perfmodel.hardware.parts import Device, Storage
from perfmodel.prediction import predict
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.tables import Table

WORKLOAD = """
batch = 512
[model]
dense_features = 13
bottom_mlp = [64, 128]
top_mlp = [64, 1]
[[tables]]
count = 2
rows = 40000000
dim = 128
pooling = 10
alpha = 1.05
[[tables]]
count = 2
rows = 1000
dim = 128
pooling = 10
[implementation]
name = "torchrec"
prefetch = true
"""


@pytest.fixture
def plain(tmp_path: Path) -> Deployment:
    (tmp_path / "w.toml").write_text(WORKLOAD)
    device = load("a100-sxm-80gb")
    assert isinstance(device, Device)
    machine = cluster(replace(node_of(device), gpus=1))
    return deployment_of(load_workload(tmp_path / "w.toml"), machine, train=False)


def step_us(found: Deployment) -> float:
    return predict(found).results[0].step_us


def test_all_tables_move(plain: Deployment) -> None:
    found = SoftwareMemory(cache_gib=1.0).apply(plain)
    assert [table.tier for table in found.placement.tables] == ["storage"] * 4
    assert found.machine.node.drives == 2
    assert plain.table_bytes[0] == 40_000_000 * 512


def test_a_faster_drive_and_a_larger_cache_help(plain: Deployment) -> None:
    flash = step_us(SoftwareMemory("p3700", 1, cache_gib=1.0).apply(plain))
    optane = step_us(SoftwareMemory("p5800x", 1, cache_gib=1.0).apply(plain))
    cached = step_us(SoftwareMemory("p3700", 1, cache_gib=8.0).apply(plain))
    assert flash > optane
    assert flash > cached
    assert flash > step_us(plain)


def test_prefetch_hides_reads(plain: Deployment) -> None:
    ahead = step_us(SoftwareMemory("p3700", 1, cache_gib=1.0, rows_ahead=True).apply(plain))
    waits = step_us(SoftwareMemory("p3700", 1, cache_gib=1.0, rows_ahead=False).apply(plain))
    assert ahead < waits


def test_a_step_takes_no_less_than_its_reads(plain: Deployment) -> None:
    slow = load("p3700")
    assert isinstance(slow, Storage)
    found = predict(SoftwareMemory("p3700", 1, cache_gib=1.0).apply(plain)).results[0]
    reads_us = next(row["time_us"] for row in found.families if row["family"] == "storage")
    assert found.step_us >= reads_us


def test_as_many_rows_are_written_as_are_read(plain: Deployment) -> None:
    found = SoftwareMemory("p3700", 1, cache_gib=1.0).apply(plain.with_(train=True))
    graph = op_graph(
        found.workload, found.batch, placement=found.placement, pipeline=found.pipeline
    )
    rows = {op.name: op.attributes["rows"] for op in graph.ops if "tier::storage" in op.name}
    assert rows["tier::storage_read"] == rows["tier::storage_write"]
    slower = predict(found).results[0].step_us
    assert slower > step_us(SoftwareMemory("p3700", 1, cache_gib=1.0).apply(plain))


def test_a_cache_belongs_to_a_node_and_is_no_larger_than_the_tables(plain: Deployment) -> None:
    """Eight devices of a node share it; the default of 16 GiB is more than their tables."""
    found = SoftwareMemory(cache_gib=100.0).apply(plain)
    assert "could stay in host memory" in found.notes[-1]
    assert step_us(found) <= step_us(SoftwareMemory(cache_gib=1.0).apply(plain))
    many = deployment_of(load_workload("criteo-kaggle"), cluster("dgx-a100-80gb"), train=False)
    shared = SoftwareMemory(cache_gib=0.8).apply(many)
    assert shared.placement.caches[0].capacity_bytes == pytest.approx(0.1 * 2**30)
    assert step_us(SoftwareMemory().apply(many)) > 0


def test_on_processors_alone(plain: Deployment) -> None:
    """Their memory is the device's: tables on drives are slower, not refused."""
    machine = cluster("epyc-7742")
    start = deployment_of(plain.workload, machine, 512, train=False)
    found = SoftwareMemory(cache_gib=1.0).apply(start)
    assert step_us(found) > step_us(start)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"cache_gib": -1.0}, "cache_gib: .*got -1"),
        ({"drives": 0}, "drives: .*got 0"),
        ({"drive": "", "cache_gib": 1.0}, "no drives"),
    ],
)
def test_what_makes_no_sense(plain: Deployment, settings: dict[str, object], word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        SoftwareMemory(**settings).apply(plain)  # type: ignore[arg-type]


def test_tables_larger_than_the_drives(plain: Deployment) -> None:
    tables = tuple(replace(table, rows=4_000_000_000) for table in plain.workload.tables)
    huge = plain.with_(workload=replace(plain.workload, tables=tables))
    with pytest.raises(WorkloadError, match="larger than 1 p3700"):
        SoftwareMemory("p3700", 1, cache_gib=1.0).apply(huge)


@pytest.mark.slow
def test_the_rank_whose_tables_miss_most_is_not_left_out() -> None:
    """The rank that looks up most holds small tables, all of which its cache has."""
    unlike = deployment_of(load_workload("criteo-kaggle"), cluster("dgx-a100-80gb"), 16_384)
    found = SoftwareMemory(cache_gib=0.4).apply(unlike)
    few, every = (predict(found, every_rank=each).results[0].step_us for each in (False, True))
    assert few == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("pooling", [(25, 25, 25, 25), (97, 1, 1, 1), (40, 40, 10, 10)])
def test_drives_serve_who_asks(pooling: tuple[int, ...]) -> None:
    """A node's drives read as many rows for one rank as for four that ask for as many together."""
    node = replace(cluster("hotline-server").node, storage=load("pm9a3"), drives=2)
    tables = tuple(Table(100_000_000, 128, each, 0.1) for each in pooling)
    workload = replace(load_workload("criteo-kaggle"), tables=tables).with_(
        model__bottom_mlp=[128], implementation__sharding="table_wise"
    )
    start = deployment_of(workload, cluster(node), 512, train=False)
    found = predict(SoftwareMemory(cache_gib=1.0).apply(start)).results[0]
    assert found.bound_by is not None
    assert next(iter(found.bound_by)) == "storage"
    by_hand_us = 512 * 100 / 2 / 0.9  # two drives of 900,000 reads per second
    assert found.step_us == pytest.approx(by_hand_us, rel=0.05)


def test_a_machine_of_cpus_has_rows_on_drives_there_alone() -> None:
    """226 GB of tables leave its memory, of which the cache then takes 17.2."""
    start = deployment_of(load_workload("criteo-terabyte"), cluster("xeon-platinum-8380"))
    memory = predict(SoftwareMemory().apply(start)).results[0].memory
    assert memory is not None
    used = {use["tier"]: use["total_bytes"] for use in memory["tiers"]}
    assert used["storage"] == pytest.approx(226e9, rel=0.01)
    assert used["host"] == 16 * 2**30
    assert used["dram"] < 2e9


def test_a_cache_that_holds_the_fullest_rank_s_rows_leaves_the_drives_alone() -> None:
    """One table on two ranks of a node and one of a thousandth: the first rank's part, 512 MB, is
    more than the mean. Of the node's 2 GiB each rank has half, enough for all; with 0.5 GiB rows
    are read."""
    small, large = Table(1_000, 128, 1.0, 0.3), Table(1_000_000, 128, 1.0, 0.3)
    node = replace(cluster("dgx-a100-80gb").node, gpus=2)
    workload = replace(load_workload("criteo-kaggle"), tables=(large, small)).with_(
        model__bottom_mlp=[128], implementation__sharding="table_wise"
    )
    start = deployment_of(workload, cluster(node), 4096)
    found = {gib: SoftwareMemory(cache_gib=gib).apply(start) for gib in (2.0, 0.5)}
    assert found[2.0].placement.caches[0].capacity_bytes == 512e6
    families = {
        gib: [row["family"] for row in predict(each).results[0].families]
        for gib, each in found.items()
    }
    assert "storage" not in families[2.0]
    assert "storage" in families[0.5]
