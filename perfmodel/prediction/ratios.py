"""What an op takes on one machine divided by what it takes on another, as the kernel models say.

The two machines launch different kernels for one op; so whole ops are compared, not kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import HABITS
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.prediction.scheduled import place_collectives

KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")
_BY_SHAPES = ("matmul", "convolution", "attention", "vector")
"""Families whose shapes say all of the work. Of others the measured time alone knows which rows
were looked up, what was waited for, or which memory a copy began in."""


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
        return durations_of(place_collectives(self.rows, machine), machine).duration_us

    @property
    def by_shapes(self) -> NDArray[np.bool_]:
        """Per piece, whether its shapes say all of its work."""
        known = {
            op: OPS[op].family in _BY_SHAPES and not (op in HABITS and HABITS[op].sectors)
            for op in set(self.rows.op)
        }
        return np.array([known[op] for op in self.rows.op], bool)


@dataclass(frozen=True)
class OpDurations:
    """Per kind of piece (`KINDS`) and op `[kinds, ops]`: what its own pieces take, and with those
    of all it calls."""

    own: Floats
    whole: Floats

    @classmethod
    def of(cls, graph: OpGraph, kind: Ints, owner: Ints, taken: Floats) -> OpDurations:
        """Sums of `taken`, each of a kind (its place in `KINDS`) and of the op that owns it."""
        own = np.zeros((len(KINDS), len(graph)))
        np.add.at(own, (kind, owner), taken)
        whole = own.T.tolist()
        for index in range(len(graph) - 1, -1, -1):
            parent = graph.ops[index].parent
            if parent != NO_OP:
                whole[parent] = [a + b for a, b in zip(whole[parent], whole[index], strict=True)]
        return cls(own, np.array(whole).reshape(-1, len(KINDS)).T)

    @classmethod
    def of_pieces(cls, graph: OpGraph, pieces: OpPieces, taken: Floats) -> OpDurations:
        """Sums of what each of `pieces` takes."""
        return cls.of(graph, pieces.kind, pieces.owner, taken)


@dataclass(frozen=True)
class ComparedOps:
    """Of which op two machines are compared, with all it calls or without, by which kinds."""

    op: int
    whole: bool
    kinds: tuple[int, ...]

    def of(self, taken: OpDurations) -> float:
        """What it takes."""
        table = taken.whole if self.whole else taken.own
        return float(table[list(self.kinds), self.op].sum())


class OpRatio(NamedTuple):
    """An op on one machine beside the same op on another."""

    modelled: float
    """Time on the target over time on the source, as the models say."""
    unexplained: float
    """Logarithm of measured over modelled on the source, of the part that shapes say all of."""


@dataclass(frozen=True)
class Source:
    """The ops of a graph on the machine of the trace: as models say, and as measured."""

    graph: OpGraph
    modelled: OpDurations
    by_shapes: OpDurations
    """Of `modelled`, the pieces whose shapes say all of their work."""
    measured: OpDurations

    @classmethod
    def of(
        cls, graph: OpGraph, pieces: OpPieces, machine: Cluster, measured: OpDurations
    ) -> Source:
        """`pieces` of `graph` on `machine`, beside what its operations took."""
        taken = pieces.duration_us(machine)
        return cls(
            graph,
            OpDurations.of_pieces(graph, pieces, taken),
            OpDurations.of_pieces(graph, pieces, taken * pieces.by_shapes),
            measured,
        )

    def unexplained(self, chosen: ComparedOps) -> float:
        """Logarithm of measured over modelled time of what `chosen` sums up, weighted by the share
        that shapes say all of; 0 where nothing was measured."""
        modelled, measured = chosen.of(self.modelled), chosen.of(self.measured)
        if modelled <= 0 or measured <= 0:
            return 0.0
        return chosen.of(self.by_shapes) / modelled * float(np.log(measured / modelled))


def op_ratios(source: Source, after: OpDurations) -> Callable[[int, str], OpRatio | None]:
    """(op, kind of device operation) to its ratio, where `after` is what the target takes.

    That of the op's own pieces of that kind; where it has none, of the innermost op around it that
    has some on both machines, calls included. None where no model knows any of them.
    """
    known: dict[tuple[int, str], OpRatio | None] = {}

    def ratio(op: int, kind: str) -> OpRatio | None:
        if (op, kind) not in known:
            chosen = compare_ops(source.graph, op, kind, source.modelled, after)
            known[op, kind] = (
                None
                if chosen is None
                else OpRatio(
                    chosen.of(after) / chosen.of(source.modelled), source.unexplained(chosen)
                )
            )
        return known[op, kind]

    return ratio


def compare_ops(
    graph: OpGraph, op: int, kind: str, before: OpDurations, after: OpDurations
) -> ComparedOps | None:
    """By pieces of one kind; a copy that is a kernel on the other machine, by both kinds."""
    kinds = (KINDS.index(kind),)
    ways = [kinds] if kind == COLLECTIVE else [kinds, (KINDS.index(KERNEL), KINDS.index(COPY))]
    at = op
    while at != NO_OP:
        for way in ways:
            for whole in (False, True) if at == op else (True,):
                chosen = ComparedOps(at, whole, way)
                if chosen.of(before) > 0 and chosen.of(after) > 0:
                    return chosen
        at = graph.ops[at].parent
    return None
