"""A step on a CPU: its pieces in order are its rows, and an execution graph of one host thread.

`step_bytes` is what all of them write, `first_frac` is 1 for the first of its op and direction,
whose code and whose threads have been idle since the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.lowering.draft import Built
from perfmodel.lowering.lower import lower
from perfmodel.lowering.piece import Piece
from perfmodel.ops.graph import AUTOGRAD_NODE, NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import BUCKET, CALL, NODE, STEP, UPDATE
from perfmodel.trace.columns import NONE

_HOST = (NodeKind.HOST, Cause.HOST_OP_WITHOUT_LAUNCH, Scope.HOST)
_MARK = (NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)


def cpu_graph(steps: Sequence[Sequence[Piece]], duration_us: Floats, rank: int = 0) -> Built:
    """The graph of `steps` (of `cpu_steps`) with their pieces' durations: one chain, each step
    between two marks.

    The threads that an operator works with are part of its duration; collectives are waited for.
    """
    piece, bounds = _places(steps)
    pieces = [each for step in steps for each in step]
    count = len(piece)
    what = [
        _MARK if at == NONE else _COLLECTIVE if pieces[at].kind == "collective" else _HOST
        for at in piece.tolist()
    ]
    kind, cause, scope = np.array(what, np.int64).T
    zeros = np.zeros(count, np.int64)
    nodes = Nodes(
        kind=kind,
        cause=cause,
        scope=scope,
        rank=zeros + rank,
        resource=zeros,
        row=zeros + NONE,
        start_us=zeros.astype(np.float64),
        duration_us=np.where(piece == NONE, 0.0, np.append(duration_us, 0.0)[piece]),
        release_us=np.concatenate([[0.0], np.full(count - 1, -np.inf)]),
    )
    links = np.arange(count - 1)
    edges = Edges(
        links,
        links + 1,
        np.full(count - 1, int(EdgeKind.PROGRAM), np.int64),
        np.zeros(count - 1),
        np.zeros(count - 1),
    )
    names = tuple(f"step {number}" for number in range(len(steps)))
    labels = ["" if at == NONE else pieces[at].op for at in piece.tolist()]
    for name, (start, end) in zip(names, bounds.tolist(), strict=True):
        labels[start], labels[end] = name, f"end of {name}"
    marks = StepMarks(zeros[: len(steps)] + rank, names, bounds[:, 0], bounds[:, 1])
    graph = ExecutionGraph(nodes, edges, marks, (f"{rank}/main",), tuple(labels), ("",) * count)
    return Built(graph, piece, *np.zeros((2, 0), np.int64))


def _places(steps: Sequence[Sequence[Piece]]) -> tuple[Ints, Ints]:
    """Per node its piece, or none for a mark; and per step its first and last node."""
    piece: list[int] = []
    bounds = []
    taken = 0
    for step in steps:
        start = len(piece)
        piece += [NONE, *range(taken, taken + len(step)), NONE]
        taken += len(step)
        bounds.append((start, len(piece) - 1))
    return np.array(piece, np.int64), np.array(bounds, np.int64)


ALL_REDUCE = "c10d::allreduce_"
"""The call that `DistributedDataParallel` makes per bucket."""
ANNOTATION_PREFIXES = ("Optimizer.", "ProfilerStep", "enumerate(DataLoader)")


def cpu_steps(graph: OpGraph) -> list[list[Piece]]:
    """What the host does in each step: kernels, views, and what Python and autograd take.

    What ran before the first step is no step, unless nothing else is there.
    """
    numbers = sorted({op.step for op in graph.ops}) or [0]
    numbers = [number for number in numbers if number >= 0] or numbers
    lowered = lower(graph, "cpu")
    steps: dict[int, list[Piece]] = {number: [] for number in numbers}
    for piece, owner in zip(lowered.pieces, lowered.owner.tolist(), strict=True):
        step = lowered.graph.ops[owner].step
        if step in steps:
            steps[step].append(piece)
    return [[*own, *_host_pieces(graph, number)] for number, own in steps.items()]


def _host_pieces(graph: OpGraph, step: int) -> list[Piece]:
    """Calls from Python, autograd nodes, buckets of gradients, parameters that an optimizer visits,
    and the step."""
    counts = dict.fromkeys((CALL, NODE, BUCKET, UPDATE), 0)
    for op in graph.ops:
        kind = _kind(graph, op) if op.step == step else ""
        if kind:
            counts[kind] += 1
    pieces = [Piece(kind, {"count": float(n)}, kind="host") for kind, n in counts.items() if n]
    return [*pieces, Piece(STEP, kind="host")]


def _kind(graph: OpGraph, op: Op) -> str:
    """What of the host's own work an op stands for, beside what it calls; `""` for none."""
    if op.name.startswith(AUTOGRAD_NODE):
        return NODE
    if op.name == ALL_REDUCE:
        return BUCKET
    if op.name.startswith(ANNOTATION_PREFIXES):
        return ""
    if op.parent != NO_OP and not graph.ops[op.parent].name.startswith(ANNOTATION_PREFIXES):
        return ""
    return UPDATE if op.phase == OPTIMIZER else CALL


STEP_BYTES, FIRST_FRAC = "step_bytes", "first_frac"


def rows_of(pieces: Sequence[Piece]) -> Rows:
    """The pieces of one step, in order, as rows."""
    rows = Rows.of(
        [
            {**piece.dims, "op": piece.op, "dtype": piece.dtype, "direction": piece.direction}
            for piece in pieces
        ]
    )
    total = written_bytes(rows).sum()
    told = {STEP_BYTES: np.full(len(rows), total), FIRST_FRAC: is_first(rows)}
    return replace(rows, dims={**rows.dims, **told})


def is_first(rows: Rows) -> Floats:
    """1 for the first row of its op and direction, 0 for the others."""
    firsts = np.zeros(len(rows))
    seen: set[tuple[str, str]] = set()
    for row, key in enumerate(zip(rows.op, rows.direction, strict=True)):
        if key not in seen:
            seen.add(key)
            firsts[row] = 1.0
    return firsts


def written_bytes(rows: Rows) -> Floats:
    """Bytes that each row writes."""
    result = np.zeros(len(rows))
    for op, index in rows.groups():
        dims, item = rows.dims_of(op, index), rows.item_bytes[index]
        directions = np.array([rows.direction[row] for row in index.tolist()])
        for direction in set(directions.tolist()):
            written = OPS[op].of(direction).written_bytes(dims, item)
            chosen = directions == direction
            result[index[chosen]] = written[chosen]
    return result
