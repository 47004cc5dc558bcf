"""No design loses work: dense FLOP and looked-up rows per sample are those of the workload."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from slow import slow_but

from perfmodel.designs import DESIGNS, Deployment, Phase, deployment_of
from perfmodel.designs.composed import composed
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.ops.spec import OPS
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.settings import Model

MACHINES = (("dgx-a100-80gb", 1), ("dgx-h100", 1))
LOOKUPS = ("tbe", "embedding_bag", "host_embedding_bag")
NEEDS_OTHER_WORKLOADS = ("balanced_sequences",)
"""Models with sequences."""


def drawn(number: int) -> tuple[Workload, str, int, int]:
    """A small workload, on a machine, with a batch."""
    draw = random.Random(number)
    width = draw.choice([16, 32, 64])
    tables = tuple(
        Table(draw.randrange(1000, 200_000), width, draw.randrange(1, 9), draw.choice([0.0, 1.05]))
        for _ in range(draw.randrange(16, 24))
    )
    model = Model(13, (64, width), (draw.choice([64, 128]), 1))
    machine, nodes = MACHINES[number % len(MACHINES)]
    return Workload(f"drawn {number}", model, tables), machine, nodes, 16 * draw.choice([64, 128])


Work = tuple[float, float]


def work(found: Deployment, phase: Phase | Deployment) -> Work:
    """Of a step of all ranks, per sample: FLOP of matrix products, and rows looked up forward."""
    target, flop, looked_up = found.machine.node.device.target, 0.0, 0.0
    for rank in range(found.ranks):
        graph = op_graph(
            found.workload,
            found.batch,
            ranks=found.ranks,
            rank=rank,
            target=target,
            train=found.train,
            linked=found.machine.linked_gpus,
            placement=phase.placement,
            pipeline=phase.pipeline,
        )
        lowered = lower(graph, target)
        at = [i for i, p in enumerate(lowered.pieces) if OPS[p.op].family == "matmul"]
        rows = lowered.rows.take(np.array(at, np.int64))
        flop += sum(float(np.sum(OPS[op].flop(rows.dims_of(op, i)))) for op, i in rows.groups())
        looked_up += sum(
            p.dims.get("lookups") or _in_one_process(found, p.dims)
            for p in lowered.pieces
            if p.op == "host_pool" or (p.op in LOOKUPS and p.direction == "fwd")
        )
    return flop / found.batch, looked_up / found.batch


def _in_one_process(found: Deployment, dims: Mapping[str, float]) -> float:
    """A rank's share of the rows that one process looks up for all: each rank's graph has them."""
    assert dims["processes"] == 1
    return dims["batch"] * dims["pooling"] / found.ranks


@pytest.mark.parametrize("number", slow_but(1, range(2)))
@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_a_design_keeps_products_and_lookups(name: str, number: int) -> None:
    workload, machine, nodes, batch = drawn(number)
    start = deployment_of(workload, cluster(machine, nodes), batch)
    if name in NEEDS_OTHER_WORKLOADS:
        with pytest.raises(PerfmodelError, match=name):
            composed(name).apply(start)
        return
    flop, looked_up = work(start, start)
    assert looked_up == pytest.approx(sum(table.pooling for table in workload.tables))
    found = composed(name).apply(start)
    for phase in found.phases or (found,):
        # Each kind of sharding has a lookup of its own, whose ids are a whole number.
        assert work(found, phase) == pytest.approx((flop, looked_up), rel=2e-5)
