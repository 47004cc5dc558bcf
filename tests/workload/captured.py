"""Workloads of the project's own traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from perfmodel.ops.graph import Op, OpGraph
from perfmodel.ops.read import op_graph as graph_of_trace
from perfmodel.trace import read
from perfmodel.workload import Table, Workload
from perfmodel.workload.settings import Model

TRACES = Path(__file__).parents[2] / "traces"


def workload_of(meta: Path) -> tuple[Workload, int, int]:
    """The workload that a trace's description names, its batch per rank and number of ranks."""
    described = json.loads(meta.read_text())
    about = described["workload"]
    bottom, top = about["bottom"], about["top"]
    tables = tuple(Table(rows, about["dim"], about["pooling"]) for rows in about["rows"])
    model = Model(bottom[0], tuple(bottom[1:]), tuple(top))
    return Workload(about["preset"], model, tables), about["batch_per_rank"], described["world"]


def step_of(execution_trace: Path, step: int) -> list[Op]:
    """The ops of one step of an execution trace; parents count from its first op."""
    graph: OpGraph = graph_of_trace(read(execution_trace))[0]
    first = next(index for index, op in enumerate(graph.ops) if op.step == step)
    return [
        replace(op, parent=max(op.parent - first, -1), step=0)
        for op in graph.ops
        if op.step == step
    ]
