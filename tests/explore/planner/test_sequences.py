"""Plans of tables that are read position by position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.designs import deployment_of
from perfmodel.designs.layouts.surrogate import problems
from perfmodel.errors import WorkloadError
from perfmodel.explore.planner import plan_deployment
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.workload import load_workload


def deployment(batch: int = 64, gpus: int = 4):
    one = cluster("hgx-mi350x", 1)
    workload = load_workload("dlrm-v4-hstu")
    small = tuple(replace(table, rows=max(table.rows // 100, 10)) for table in workload.tables)
    machine = replace(one, node=replace(one.node, gpus=gpus))
    return deployment_of(replace(workload, tables=small), machine, batch)


@pytest.mark.slow
def test_a_plan_of_sequences_is_never_slower_than_the_workloads_own() -> None:
    start = deployment()
    plan = plan_deployment(start, verified=1)
    own = predict(start.workload, hardware=[start.machine], batch=start.batch).results[0]
    assert plan.result.step_us <= own.step_us * (1 + 1e-9)
    assert {placed.sharding for placed in plan.placement.tables} <= {
        "row_wise",
        "column_wise",
        "table_wise",
    }


def test_sequences_bring_as_many_rows_as_ids_leave() -> None:
    """A shard of one in four parts looks up, and sends, a quarter of the table's."""
    made = next(problems(deployment()))
    of_first = {way.sharding: at for at, way in enumerate(made.ways) if way.number == 0}
    assert "data_parallel" not in of_first
    sent = made.sent_us.sum(axis=0)
    assert sent[of_first["table_wise"]] == pytest.approx(4 * sent[of_first["row_wise"]], rel=1e-3)
    other = next(at for at, w in enumerate(made.ways) if w.number == 3 and w.parts == 1)
    asked = 2628 * 0.024, 1 * 0.025
    ratio = sent[of_first["table_wise"]] / sent[other]
    assert ratio == pytest.approx(asked[0] / asked[1], rel=0.05)


def test_activations_of_sequences_that_do_not_fit_are_named() -> None:
    with pytest.raises(WorkloadError, match="what would do: a batch of"):
        plan_deployment(deployment(4 * 4096), verified=1)
