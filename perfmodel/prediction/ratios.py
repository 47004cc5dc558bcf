"""What an op takes on one machine divided by what it takes on another, as the kernel models say.

The two machines launch different kernels for one op; so whole ops are compared, not kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.duration import durations_of
from perfmodel.graph.ops import NO_OP, OpGraph
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.ops.vocabulary.fallback import UNKNOWN
from perfmodel.prediction.placed import placed
from perfmodel.trace.columns import Floats

KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")


@dataclass(frozen=True)
class _Taken:
    """Modelled microseconds per kind of piece (`KINDS`) and op: its own, and with all it calls."""

    own: Floats
    whole: Floats


def op_ratios(
    graph: OpGraph, source: Cluster, target: Cluster, *, tf32_matmul: bool = False
) -> Callable[[int, str], float | None]:
    """(op, kind of device operation) to time on `target` over time on `source`.

    That of the op's own pieces of that kind; where it has none, of the innermost op around it that
    has some on both machines, calls included. None where no model knows any of them.
    Raises `ModelError` for sizes that cannot be.
    """
    before = _taken(graph, source, tf32_matmul)
    after = _taken(graph, target, tf32_matmul)
    found: dict[tuple[int, str], float | None] = {}

    def ratio(op: int, kind: str) -> float | None:
        if (op, kind) not in found:
            found[op, kind] = _ratio(graph, op, kind, before, after)
        return found[op, kind]

    return ratio


def _taken(graph: OpGraph, machine: Cluster, tf32_matmul: bool) -> _Taken:
    device = machine.node.device
    lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
    own = np.zeros((len(KINDS), len(graph)))
    if len(lowered):
        known = np.array([piece.op != UNKNOWN for piece in lowered.pieces])
        taken = durations_of(placed(lowered.rows, machine), machine).duration_us
        kind = np.array([KINDS.index(piece.kind) for piece in lowered.pieces])
        np.add.at(own, (kind[known], lowered.owner[known]), taken[known])
    whole = own.T.tolist()
    for index in range(len(graph) - 1, -1, -1):
        parent = graph.ops[index].parent
        if parent != NO_OP:
            whole[parent] = [a + b for a, b in zip(whole[parent], whole[index], strict=True)]
    return _Taken(own, np.array(whole).reshape(-1, len(KINDS)).T)


def _ratio(graph: OpGraph, op: int, kind: str, before: _Taken, after: _Taken) -> float | None:
    """Of the pieces of one kind; a copy that is a kernel on the other machine, of both kinds."""
    kinds = [KINDS.index(kind)]
    ways = [kinds] if kind == COLLECTIVE else [kinds, [KINDS.index(KERNEL), KINDS.index(COPY)]]
    at = op
    while at != NO_OP:
        for way in ways:
            tables = ((before.own, after.own),) if at == op else ()
            for one, other in (*tables, (before.whole, after.whole)):
                source_us, target_us = one[way, at].sum(), other[way, at].sum()
                if source_us > 0 and target_us > 0:
                    return float(target_us / source_us)
        at = graph.ops[at].parent
    return None
