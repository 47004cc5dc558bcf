"""A step on a CPU: all of it runs on host threads, so its pieces in order are its time."""

from __future__ import annotations

from perfmodel.graph.ops import NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.lowering.names import rule_of
from perfmodel.lowering.piece import Piece, Untold
from perfmodel.ops.vocabulary.host import CALL, NODE, STEP, UPDATE, VIEW

CPU = "cpu"
NODE_PREFIX = "autograd::engine::evaluate_function: "
ANNOTATION_PREFIXES = ("Optimizer.", "ProfilerStep", "enumerate(DataLoader)")


def cpu_pieces(graph: OpGraph) -> list[Piece]:
    """What the host does in one step: kernels, views, and what Python and autograd take.

    An op that no rule knows and that calls nothing counts as a view.
    """
    children = graph.children()
    found: list[Piece] = []
    counts = dict.fromkeys((CALL, NODE, UPDATE), 0)

    def visit(index: int) -> None:
        op = graph.ops[index]
        kind = _host_kind(graph, op)
        if kind:
            counts[kind] += 1
        pieces = _lowered(op, not children[index])
        if pieces is not None:
            found.extend(pieces or (Piece(VIEW, kind="host"),))
            return
        for child in children[index]:
            visit(child)

    for index in graph.top_level():
        visit(index)
    found += [Piece(kind, {"count": float(n)}, kind="host") for kind, n in counts.items() if n]
    return [*found, Piece(STEP, kind="host")]


def _host_kind(graph: OpGraph, op: Op) -> str:
    """What of the host's own work an op stands for, beside what it calls."""
    if op.name.startswith(NODE_PREFIX):
        return NODE
    if op.name.startswith(ANNOTATION_PREFIXES):
        return ""
    parent = graph.ops[op.parent].name if op.parent != NO_OP else ""
    if op.parent != NO_OP and not parent.startswith(ANNOTATION_PREFIXES):
        return ""
    return UPDATE if op.phase == OPTIMIZER else CALL


def _lowered(op: Op, is_leaf: bool) -> tuple[Piece, ...] | None:
    """The op's pieces, or None where those that it calls stand for it."""
    if op.name.startswith((NODE_PREFIX, *ANNOTATION_PREFIXES)):
        return None if not is_leaf else ()
    for leaf in (False, True) if is_leaf else (False,):
        rule = rule_of(op.name, CPU, leaf=leaf)
        if rule is not None:
            try:
                return tuple(rule(op))
            except Untold:
                continue
    return () if is_leaf else None
