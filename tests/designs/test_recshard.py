"""RecShard: what popularity and memory say, rank by rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.cached_tables import RecShard, hot_frac
from perfmodel.designs.composed import composed
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load
from perfmodel.prediction.compare import fastest
from perfmodel.workload import load_workload
from perfmodel.workload.sharding import packed
from perfmodel.workload.tables import Table

TABLES = tuple(Table(2_000_000, 64, 10.0, alpha) for alpha in (0.8, 1.0, 1.2, 1.4)) * 4
BYTES = 2_000_000 * 64 * 4.0


def deployment(tables: tuple[Table, ...] = TABLES) -> Deployment:
    made = replace(load_workload("neo-i"), name="skewed", tables=tables, batch=8192)
    made = made.with_(implementation__table_precision="fp32", implementation__sharding="table_wise")
    return deployment_of(made, cluster(load("dgx-a100-40gb"), 1))


def test_all_or_nothing_in_device_memory() -> None:
    start = deployment()
    np.testing.assert_allclose(hot_frac(start, len(TABLES) * BYTES), 1.0)
    np.testing.assert_allclose(hot_frac(start, 1e-6), 0.0, atol=1e-9)


def test_without_skew_the_share_of_bytes_is_the_share_of_lookups() -> None:
    start = deployment((Table(2_000_000, 64, 10.0),) * 8)
    assert hot_frac(start, 2 * BYTES).sum() == pytest.approx(2.0)


def test_skewed_tables_are_served_from_few_rows() -> None:
    found = hot_frac(deployment(), 0.1 * len(TABLES) * BYTES)[:4]
    assert (np.diff(found) > 0).all()
    assert found[3] > 0.9


def test_cost_is_shared_out_evenly() -> None:
    cost = [5.0, 4.0, 3.0, 3.0, 3.0]
    held, _ = packed([(number, each, 0.0) for number, each in enumerate(cost)], 2)
    assert [sum(cost[number] for number in own) for own in held] == pytest.approx([8.0, 10.0])


@pytest.mark.parametrize(
    ("size", "message"),
    [(-1.0, r"recshard\.hbm_gb: .*got -1\.0"), (float("inf"), "got inf")],
)
def test_memory_that_cannot_be_is_refused(size: float, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        RecShard(hbm_gb=size).apply(deployment())


def test_of_more_than_a_device_has_half_is_taken_and_so_on() -> None:
    """The default of 24 GB on devices of 16 GB, for tables of 68 GB."""
    start = deployment_of(load_workload("hotline-rm3"), cluster("hotline-server"), 32_768)
    deployed, found = fastest(composed("recshard"), start)
    assert found.results[0].memory is not None
    assert deployed.placement.caches[0].capacity_bytes <= 12e9
    assert any("what is set does not fit" in note for note in deployed.notes)
