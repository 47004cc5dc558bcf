"""Layers cut out of the op graph of a step, and put beside the same tables again, are that step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.ops.graph import OPTIMIZER, OpGraph
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.recorded_layers import recorded_layers
from perfmodel.workload.settings import NO_MLPS, Model

TABLES = tuple(Table(rows, 32, pooling) for rows, pooling in ((1000, 4), (500, 1), (20, 1)))
PLAIN = Workload("plain", Model(13, (64, 32), (48, 1)), TABLES, batch=96).with_(
    implementation__name="torchrec", training__dense_optimizer="adam"
)
CROSSED = PLAIN.with_(interaction__kind="dcn_v2", interaction__rank=8)


def carried(workload: Workload, *, train: bool = True) -> Workload:
    """The same with its layers as they are recorded in a step on one rank."""
    layers = recorded_layers(op_graph(workload, train=train))
    return replace(workload, model=NO_MLPS, recorded=layers)


def lines(graph: OpGraph) -> list[str]:
    """What is called, on what, by what; optimizers go through parameters in any order."""
    depth: list[int] = []
    told = []
    for op in graph.ops:
        depth.append(depth[op.parent] + 1 if op.parent >= 0 else 0)
        on = " ".join(f"{x.dtype}{x.shape}{x.strides}" for x in op.tensors)
        told.append(f"{depth[-1]} {op.name} {op.phase} {op.thread} {sorted(op.attributes)} {on}")
    steps = [line for line in told if f" {OPTIMIZER} " in line]
    return [line for line in told if line not in steps] + sorted(
        " ".join(sorted(line.split(" "))) for line in steps
    )


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("batch", [48, 96, 192])
@pytest.mark.parametrize("workload", [PLAIN, CROSSED], ids=["dot", "dcn_v2"])
def test_carried_layers_are_the_layers(workload: Workload, batch: int, ranks: int) -> None:
    other = carried(workload)
    for train in (True, False):
        expected = op_graph(workload, batch, ranks=ranks, train=train)
        found = op_graph(other, batch, ranks=ranks, train=train)
        assert lines(found) == lines(expected)
        assert len(found.data) == pytest.approx(len(expected.data), rel=0.02)
