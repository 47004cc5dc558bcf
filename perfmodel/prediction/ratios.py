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
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.fallback import UNKNOWN
from perfmodel.prediction.placed import placed
from perfmodel.trace.columns import Floats, Ints

KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")


@dataclass(frozen=True)
class OpPieces:
    """What the ops of a graph become on a machine: pieces that models know, and whose they are."""

    rows: Rows
    kind: Ints
    """Per piece, its place in `KINDS`."""
    owner: Ints

    @classmethod
    def on(cls, graph: OpGraph, machine: Cluster, *, tf32_matmul: bool = False) -> OpPieces:
        """Those of `graph` on `machine`; collectives among as many nodes as their ranks fill."""
        device = machine.node.device
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        known = [at for at, piece in enumerate(lowered.pieces) if piece.op != UNKNOWN]
        index = np.array(known, np.int64)
        kind = [KINDS.index(lowered.pieces[at].kind) for at in known]
        return cls(lowered.rows.take(index), np.array(kind, np.int64), lowered.owner[index])

    def duration_us(self, machine: Cluster) -> Floats:
        """Per piece, on `machine`."""
        if not len(self.owner):
            return np.zeros(0)
        return durations_of(placed(self.rows, machine), machine).duration_us


@dataclass(frozen=True)
class Taken:
    """Per kind of piece (`KINDS`) and op `[kinds, ops]`: what its own pieces take, and with those
    of all it calls."""

    own: Floats
    whole: Floats

    @classmethod
    def of(cls, graph: OpGraph, pieces: OpPieces, per_piece: Floats) -> Taken:
        """Sums of `per_piece`."""
        own = np.zeros((len(KINDS), len(graph)))
        np.add.at(own, (pieces.kind, pieces.owner), per_piece)
        whole = own.T.tolist()
        for index in range(len(graph) - 1, -1, -1):
            parent = graph.ops[index].parent
            if parent != NO_OP:
                whole[parent] = [a + b for a, b in zip(whole[parent], whole[index], strict=True)]
        return cls(own, np.array(whole).reshape(-1, len(KINDS)).T)


@dataclass(frozen=True)
class Compared:
    """Of which op two machines are compared, with all it calls or without, by which kinds."""

    op: int
    whole: bool
    kinds: tuple[int, ...]

    def of(self, taken: Taken) -> float:
        """What it takes."""
        table = taken.whole if self.whole else taken.own
        return float(table[list(self.kinds), self.op].sum())


def op_ratios(
    graph: OpGraph, source: Cluster, target: Cluster, *, tf32_matmul: bool = False
) -> Callable[[int, str], float | None]:
    """(op, kind of device operation) to time on `target` over time on `source`.

    That of the op's own pieces of that kind; where it has none, of the innermost op around it that
    has some on both machines, calls included. None where no model knows any of them.
    Raises `ModelError` for sizes that cannot be.
    """
    before, after = (_taken(graph, machine, tf32_matmul) for machine in (source, target))
    found: dict[tuple[int, str], float | None] = {}

    def ratio(op: int, kind: str) -> float | None:
        if (op, kind) not in found:
            chosen = compared(graph, op, kind, before, after)
            found[op, kind] = None if chosen is None else chosen.of(after) / chosen.of(before)
        return found[op, kind]

    return ratio


def _taken(graph: OpGraph, machine: Cluster, tf32_matmul: bool) -> Taken:
    pieces = OpPieces.on(graph, machine, tf32_matmul=tf32_matmul)
    return Taken.of(graph, pieces, pieces.duration_us(machine))


def compared(graph: OpGraph, op: int, kind: str, before: Taken, after: Taken) -> Compared | None:
    """By pieces of one kind; a copy that is a kernel on the other machine, by both kinds."""
    kinds = (KINDS.index(kind),)
    ways = [kinds] if kind == COLLECTIVE else [kinds, (KINDS.index(KERNEL), KINDS.index(COPY))]
    at = op
    while at != NO_OP:
        for way in ways:
            for whole in (False, True) if at == op else (True,):
                chosen = Compared(at, whole, way)
                if chosen.of(before) > 0 and chosen.of(after) > 0:
                    return chosen
        at = graph.ops[at].parent
    return None
