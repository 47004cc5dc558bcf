"""Tables in the hosts' memory behind the device's cache: more of them are never faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.training_systems import Neo
from perfmodel.embedding import Placement, RowCache
from perfmodel.hardware import cluster, load
from perfmodel.prediction import predict
from perfmodel.workload import load_workload
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.tables import Table

PER_RANK, CACHED_FRAC = 4, 0.2


def hosted(deployment: Deployment, per_rank: int, *, rows_ahead: bool) -> Deployment:
    """The layout as it is, `per_rank` of each rank's tables moved behind a cache."""
    placement = deployment.placement
    if not per_rank:
        return deployment
    seen: dict[tuple[int, ...], int] = {}
    tables = []
    for placed in placement.tables:
        seen[placed.ranks] = seen.get(placed.ranks, 0) + 1
        is_hosted = seen[placed.ranks] <= per_rank
        tables.append(replace(placed, tier="host", caches=("rows",)) if is_hosted else placed)
    one = shard_bytes(deployment.workload.tables[0], placement.tables[0], "rowwise_adagrad")
    cache = RowCache("rows", "hbm", per_rank * CACHED_FRAC * one)
    return deployment.with_(
        placement=Placement(tuple(tables), (cache,)),
        pipeline=replace(deployment.pipeline, rows_ahead=rows_ahead),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "rows_ahead"), [(0.6, False), (1.05, True)])
def test_a_larger_share_in_host_memory_is_never_faster(alpha: float, rows_ahead: bool) -> None:
    """Of four tables per rank none to all lie in the hosts' memory; all else stays the same. Where
    all do, the kernels for the device's own tables are spared, which is 0.5 % of a step."""
    machine = cluster(load("zionex"), 2)
    tables = (Table(20_000_000, 64, 20.0, alpha),) * (PER_RANK * machine.gpus)
    made = replace(load_workload("neo-i"), name="sixty-four", tables=tables)
    start = Neo().apply(deployment_of(made, machine, 65_536))
    assert {placed.sharding for placed in start.placement.tables} == {"table_wise"}
    steps = [
        predict(hosted(start, number, rows_ahead=rows_ahead)).results[0].step_us
        for number in range(PER_RANK + 1)
    ]
    assert all(more > 0.99 * fewer for fewer, more in pairwise(steps))
    assert steps[-1] > steps[0]
