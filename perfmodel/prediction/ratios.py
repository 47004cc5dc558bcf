"""What an op takes on one machine over another, by kernel models: whole ops, since the two launch
different kernels for one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import ROWS_ANYWHERE
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.prediction.scheduled import place_collectives

KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")
_BY_SHAPES = ("matmul", "convolution", "attention", "vector")
"""Families whose shapes say all of the work, unlike lookups, waits and copies."""


@dataclass(frozen=True)
class ComparedOps:
    """Of which op two machines are compared, with all it calls or without, by which kinds."""

    op: int
    whole: bool
    kinds: tuple[int, ...]

    def sum_us(self, durations: OpDurations) -> float:
        """What it takes."""
        table = durations.whole_us if self.whole else durations.own_us
        return float(table[list(self.kinds), self.op].sum())


@dataclass(frozen=True)
class OpDurations:
    """`[kinds, ops]`: what an op's own pieces take, and with those of all it calls."""

    own_us: Floats
    whole_us: Floats

    @classmethod
    def of(cls, graph: OpGraph, kind: Ints, owner: Ints, taken_us: Floats) -> OpDurations:
        """Sums of `taken_us`, each of a kind (its place in `KINDS`) and of the op that owns it."""
        own = np.zeros((len(KINDS), len(graph)))
        np.add.at(own, (kind, owner), taken_us)
        whole = own.T.tolist()
        for index in range(len(graph) - 1, -1, -1):
            parent = graph.ops[index].parent
            if parent != NO_OP:
                whole[parent] = [a + b for a, b in zip(whole[parent], whole[index], strict=True)]
        return cls(own, np.array(whole).reshape(-1, len(KINDS)).T)


@dataclass(frozen=True)
class OpPieces:
    """What the ops of a graph become on a machine: pieces that models know, and whose they are."""

    graph: OpGraph
    rows: Rows
    """Collectives among as many nodes as their ranks fill."""
    kind: Ints
    """Per piece, its place in `KINDS`."""
    owner: Ints

    @classmethod
    def on(cls, graph: OpGraph, machine: Cluster, *, tf32_matmul: bool = False) -> OpPieces:
        """Those of `graph` on `machine`."""
        device = machine.node.device
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        known = [at for at, piece in enumerate(lowered.pieces) if piece.op != UNKNOWN]
        index = np.array(known, np.int64)
        kind = [KINDS.index(lowered.pieces[at].kind) for at in known]
        rows = lowered.rows.take(index)
        return cls(graph, rows, np.array(kind, np.int64), lowered.owner[index])

    def duration_us(self, machine: Cluster) -> Floats:
        """Per piece, on `machine`."""
        if not len(self.owner):
            return np.zeros(0)
        return durations_of(place_collectives(self.rows, machine), machine).duration_us

    def by_op(self, taken_us: Floats) -> OpDurations:
        """Sums of what each piece takes."""
        return OpDurations.of(self.graph, self.kind, self.owner, taken_us)

    @property
    def by_shapes(self) -> NDArray[np.bool_]:
        """Per piece, whether its shapes say all of its work."""
        known = {
            op: OPS[op].family in _BY_SHAPES and op not in ROWS_ANYWHERE for op in set(self.rows.op)
        }
        return np.array([known[op] for op in self.rows.op], bool)

    def counted(self, chosen: ComparedOps) -> Ints:
        """The pieces that `chosen` sums up."""
        fits = np.isin(self.kind, chosen.kinds)
        if chosen.whole:
            fits &= np.array([chosen.op in callers for callers in self._callers], bool)
        else:
            fits &= self.owner == chosen.op
        return np.flatnonzero(fits)

    @cached_property
    def _callers(self) -> list[set[int]]:
        """Per piece, its owner and all ops that call it."""
        around: list[set[int]] = []
        for index, op in enumerate(self.graph.ops):
            around.append({index} | (around[op.parent] if op.parent != NO_OP else set()))
        return [around[owner] for owner in self.owner.tolist()]


@dataclass(frozen=True)
class Source:
    """The ops of a graph on the machine of the trace: as models say, and as measured."""

    pieces: OpPieces
    modelled: OpDurations
    by_shapes: OpDurations
    """Of `modelled`, the pieces whose shapes say all of their work."""
    measured: OpDurations

    @classmethod
    def of(cls, pieces: OpPieces, machine: Cluster, measured: OpDurations) -> Source:
        """`pieces` on `machine`, beside what the operations of their ops took."""
        taken = pieces.duration_us(machine)
        return cls(pieces, pieces.by_op(taken), pieces.by_op(taken * pieces.by_shapes), measured)

    def unexplained_log(self, chosen: ComparedOps) -> float:
        """Logarithm of measured over modelled time of `chosen`, by the share that shapes say all
        of; 0 where nothing was measured."""
        modelled, measured = chosen.sum_us(self.modelled), chosen.sum_us(self.measured)
        if modelled <= 0 or measured <= 0:
            return 0.0
        return chosen.sum_us(self.by_shapes) / modelled * float(np.log(measured / modelled))

    def compared(self, op: int, kind: str, after: OpDurations) -> ComparedOps | None:
        """What an operation of that kind, which `op` launched, goes by where the target takes
        `after`: its own pieces of that kind, else those of the innermost op around it that has some
        on both machines, calls included. A copy that is a kernel on the other machine goes by both
        kinds. None where no model knows any."""
        kinds = (KINDS.index(kind),)
        ways = [kinds] if kind == COLLECTIVE else [kinds, (KINDS.index(KERNEL), KINDS.index(COPY))]
        at = op
        while at != NO_OP:
            for way in ways:
                for whole in (False, True) if at == op else (True,):
                    chosen = ComparedOps(at, whole, way)
                    if chosen.sum_us(self.modelled) > 0 and chosen.sum_us(after) > 0:
                        return chosen
            at = self.pieces.graph.ops[at].parent
        return None
