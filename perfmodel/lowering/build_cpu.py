"""A step on a CPU: its pieces in order are its rows, and an execution graph of one host thread.

`step_bytes` is what all of them write, `first_frac` is 1 for the first of its op and direction,
whose code and whose threads have been idle since the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.lowering.draft import Built, Draft
from perfmodel.lowering.lower import lower
from perfmodel.lowering.piece import Piece
from perfmodel.ops.graph import AUTOGRAD_NODE, NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import BUCKET, CALL, NODE, STEP, UPDATE
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.trace.columns import NONE
from perfmodel.trace.window import MAIN_THREAD

_HOST = (NodeKind.HOST, Cause.HOST_OP_WITHOUT_LAUNCH, Scope.HOST)
_MARK = (NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)


def cpu_graph(steps: Sequence[Sequence[Piece]], duration_us: Floats, rank: int = 0) -> Built:
    """The graph of `steps` (of `cpu_steps`) with their pieces' durations: one chain, each step
    between two marks.

    The threads that an operator works with are part of its duration; collectives are waited for.
    """
    draft, marks, place = Draft(rank), [], 0
    before = None
    for number, step in enumerate(steps):
        name = f"step {number}"
        start = before = _behind(draft, before, _MARK, name)
        for piece in step:
            what = _COLLECTIVE if piece.kind == "collective" else _HOST
            before = _behind(draft, before, what, piece.op, float(duration_us[place]), place)
            place += 1
        before = _behind(draft, before, _MARK, f"end of {name}")
        marks.append((number, start, before))
    none = np.zeros(0, np.int64)
    return Built(draft.graph(marks), np.array(draft.piece, np.int64), none, none)


def _behind(
    draft: Draft,
    before: int | None,
    what: tuple[NodeKind, Cause, Scope],
    label: str,
    duration_us: float = 0.0,
    piece: int = NONE,
) -> int:
    """A node of the one thread, behind the one before."""
    node = draft.add(*what, MAIN_THREAD, label, duration_us, piece)
    draft.edge(before, node, EdgeKind.PROGRAM)
    return node


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
    first: dict[tuple[str, str], int] = {}
    for row, key in enumerate(zip(rows.op, rows.direction, strict=True)):
        first.setdefault(key, row)
    firsts = np.zeros(len(rows))
    firsts[list(first.values())] = 1.0
    return firsts


def written_bytes(rows: Rows) -> Floats:
    """Bytes that each row writes."""
    result = np.zeros(len(rows))
    for (op, direction), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        spec = OPS[op].of(direction)
        result[index] = spec.written_bytes(rows.dims_of(op, index), rows.item_bytes[index])
    return result
