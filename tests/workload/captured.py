"""Workloads of the project's own traces, and ops as what a comparison looks at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfmodel.ops.graph import Op, OpGraph, Tensor
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
        Op(op.name, op.inputs, op.outputs, max(op.parent - first, -1), op.thread, op.phase)
        for op in graph.ops
        if op.step == step
    ]


def plain(argument: Any) -> Any:
    """An argument without the identity of tensors."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.strides, argument.layout
    if isinstance(argument, tuple):
        return tuple(map(plain, argument))
    return None if argument == "<Object>" else argument


def told(op: Op) -> tuple[Any, ...]:
    """Name, inputs and outputs of an op; of `as_strided` not the offset, which needs addresses."""
    inputs = op.inputs[:3] if op.name == "aten::as_strided" else op.inputs
    return op.name, plain(inputs), plain(op.outputs)
