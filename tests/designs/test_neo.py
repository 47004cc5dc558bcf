"""Neo's layout: every dimension where it belongs, memories in turn, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.baselines import CpuOnly
from perfmodel.designs.training_systems import Neo
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load
from perfmodel.prediction import predict
from perfmodel.workload import load_workload
from perfmodel.workload.memory_tiers import require_tiers, tier_use
from perfmodel.workload.tables import Table

SMALL, BUSY, LARGE, HUGE = (
    Table(50, 128),
    Table(10_000, 128, 200.0),
    Table(400_000_000, 128),
    Table(4_000_000_000, 128),
)


def deployment(*tables: Table, nodes: int = 2, **changes: object) -> Deployment:
    made = replace(load_workload("neo-i"), name="four", tables=tables, batch=16_384)
    made = made.with_(implementation__sharding="balanced", **changes)
    return deployment_of(made, cluster(load("zionex"), nodes))


def test_each_table_takes_the_dimension_that_it_needs() -> None:
    """A table of 12.8 kB is on every rank, its gradients are less than its rows' exchange; one of
    102 GB is in rows, for a rank has 40 GB; one of 1,024 GB too, in the hosts' memory, for all 16
    have 640 GB."""
    others = (Table(1_000_000, 128, 2.0),) * 12
    found = Neo().apply(deployment(SMALL, BUSY, LARGE, HUGE, *others))
    small, _, large, huge = found.placement.tables[:4]
    assert small.sharding == "data_parallel"
    assert {large.sharding, huge.sharding} <= {"table_row_wise", "row_wise"}
    assert (large.tier, huge.tier) == ("hbm", "host")
    assert {placed.sharding for placed in found.placement.tables[4:]} == {"table_wise"}
    assert {placed.dtype for placed in found.placement.tables} == {"fp16"}
    assert found.workload.implementation.exchange_precision == "fp16"
    assert found.pipeline.input_ahead
    require_tiers(tier_use(found.workload, found.placement, found.machine))


def test_what_device_memory_cannot_hold_goes_to_hosts_behind_a_cache() -> None:
    found = Neo().apply(deployment(HUGE, LARGE, BUSY, nodes=1))
    assert [placed.tier for placed in found.placement.tables] == ["host", "hbm", "hbm"]
    (cache,) = found.placement.caches
    assert cache.policy == "lru"
    assert found.pipeline.rows_ahead
    require_tiers(tier_use(found.workload, found.placement, found.machine))


def test_what_no_node_has_room_for_goes_in_rows_to_all() -> None:
    """Five tables of 538 GB, of which a node's 1.5 TB hold two; in the 640 GB of all devices one
    fits beside caches."""
    found = Neo().apply(deployment(*(replace(HUGE, rows=2_100_000_000),) * 5))
    kinds = {(placed.sharding, placed.tier) for placed in found.placement.tables}
    assert ("row_wise", "host") in kinds
    assert "table_wise" not in {sharding for sharding, _ in kinds}
    require_tiers(tier_use(found.workload, found.placement, found.machine))


def test_whole_tables_that_find_room_stay_whole() -> None:
    """Of forty tables of 13.2 GB, each of 16 ranks has room for three."""
    found = Neo().apply(deployment(*(Table(100_000_000, 64, 20.0),) * 40))
    assert {placed.sharding for placed in found.placement.tables} == {"table_wise"}
    require_tiers(tier_use(found.workload, found.placement, found.machine))


def test_sixteen_bits_on_the_wire_are_faster() -> None:
    """Half as wide an exchange makes model A 1.1 to 1.6 times as fast."""
    start = deployment_of(load_workload("neo-a"), cluster(load("zionex-16")))
    wide, narrow = (
        predict(Neo(wire=wire).apply(start)).results[0].step_us for wire in ("fp32", "fp16")
    )
    assert 1.1 < wide / narrow < 1.6


def test_a_plan_is_kept() -> None:
    start = deployment(SMALL, BUSY)
    found = Neo(sharding="as_deployed").apply(start)
    pairs = zip(found.placement.tables, start.placement.tables, strict=True)
    assert all(one.ranks == other.ranks for one, other in pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sharding": "random"}, "sharding: .*'random'"),
        ({"wire": "int3"}, "wire: .*'int3'"),
        ({"cache_frac": 1.5}, r"cache_frac: .*got 1\.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Neo(**settings)  # type: ignore[arg-type]


def test_too_little_memory_says_what_is_needed() -> None:
    tables = (replace(HUGE, rows=40_000_000_000),)
    with pytest.raises(WorkloadError, match=r"tables of 10,240\.0 GB fit in no layout into host"):
        Neo().apply(deployment(*tables, nodes=1))


def test_cpus_have_no_device_memory() -> None:
    hosts = CpuOnly().apply(deployment(SMALL, BUSY))
    with pytest.raises(WorkloadError, match="machine of CPUs"):
        Neo().apply(hosts)
