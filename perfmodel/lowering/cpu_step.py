"""A step on a CPU: all of it runs on host threads, so its pieces in order are its time."""

from __future__ import annotations

from perfmodel.graph.ops import NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.lowering.lower import lower
from perfmodel.lowering.piece import Piece
from perfmodel.ops.vocabulary.host import BUCKET, CALL, NODE, STEP, UPDATE

ALL_REDUCE = "c10d::allreduce_"
"""The call that `DistributedDataParallel` makes per bucket."""
NODE_PREFIX = "autograd::engine::evaluate_function: "
ANNOTATION_PREFIXES = ("Optimizer.", "ProfilerStep", "enumerate(DataLoader)")


def cpu_steps(graph: OpGraph) -> list[list[Piece]]:
    """What the host does in each step: kernels, views, and what Python and autograd take.

    What ran before the first step is no step, unless nothing else is there.
    """
    numbers = sorted({op.step for op in graph.ops}) or [0]
    numbers = [number for number in numbers if number >= 0] or numbers
    lowered = lower(graph, "cpu")
    found: dict[int, list[Piece]] = {number: [] for number in numbers}
    for piece, owner in zip(lowered.pieces, lowered.owner.tolist(), strict=True):
        step = lowered.graph.ops[owner].step
        if step in found:
            found[step].append(piece)
    return [[*own, *_host_pieces(graph, number)] for number, own in found.items()]


def _host_pieces(graph: OpGraph, step: int) -> list[Piece]:
    """Calls from Python, autograd nodes, buckets of gradients, parameters that an optimizer visits,
    and the step."""
    counts = dict.fromkeys((CALL, NODE, BUCKET, UPDATE), 0)
    for op in graph.ops:
        kind = _kind(graph, op) if op.step == step else ""
        if kind:
            counts[kind] += 1
    found = [Piece(kind, {"count": float(n)}, kind="host") for kind, n in counts.items() if n]
    return [*found, Piece(STEP, kind="host")]


def _kind(graph: OpGraph, op: Op) -> str:
    """What of the host's own work an op stands for, beside what it calls; `""` for none."""
    if op.name.startswith(NODE_PREFIX):
        return NODE
    if op.name == ALL_REDUCE:
        return BUCKET
    if op.name.startswith(ANNOTATION_PREFIXES):
        return ""
    if op.parent != NO_OP and not graph.ops[op.parent].name.startswith(ANNOTATION_PREFIXES):
        return ""
    return UPDATE if op.phase == OPTIMIZER else CALL
