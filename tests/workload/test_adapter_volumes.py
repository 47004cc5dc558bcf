"""Lookups that ranks ask of one another past the caches in their adapters: sent is received."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.designs import deployment_of
from perfmodel.designs.smartnic import SmartNic
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload
from perfmodel.workload.adapter_caches import adapter_use
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table

TABLES = tuple(
    Table(10 ** (4 + number % 4), 64, (1.0, 4.0, 20.0)[number % 3], (0.6, 0.9, 1.2)[number % 3])
    for number in range(26)
)


def test_unlike_tables_are_sent_as_many_lookups_as_they_receive() -> None:
    workload = replace(load_workload("smartnic-rm"), tables=TABLES)
    design = SmartNic(adapter="u280", cache_gib=0.018)
    start = deployment_of(workload, cluster("dgx-a100-40gb", 3), 24 * 512, train=False)
    found = design.apply(start)
    linked, sent, received = found.machine.linked_gpus, [], []
    plan = plan_of_placement(workload, found.placement, found.ranks, linked)
    for rank in range(found.ranks):
        run = Run(
            workload=workload,
            batch=512,
            ranks=found.ranks,
            rank=rank,
            target="cuda",
            train=False,
            plan=plan,
            linked=linked,
            placement=found.placement,
        )
        use = adapter_use(run)
        assert use is not None
        sent.append(use.sent_lookups(run))
        received.append(use.received_split(run))
    assert np.sum(received) == pytest.approx(np.sum(sent), rel=1e-4)
    assert np.sum(sent) < 0.95 * found.batch * sum(table.pooling for table in TABLES)
