"""What an operation takes on another machine over what it took: by models of its op's pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import ROWS_ANYWHERE
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.lowering.observed import launched_by, uses_tf32, with_placement
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")
_BY_SHAPES = ("matmul", "convolution", "attention", "vector")
"""Families whose shapes say all of the work, unlike lookups, waits and copies."""
_KIND = {NodeKind.KERNEL: KERNEL, NodeKind.COPY: COPY, NodeKind.COLLECTIVE: COLLECTIVE}


class ComparedOps(NamedTuple):
    """By which op two machines are compared, alone or with all it calls, and by which kinds."""

    op: int
    whole: bool
    kinds: tuple[int, ...]

    def sum_us(self, sums_us: Floats) -> float:
        """What it takes, of sums by op (`sums_by_op`)."""
        return float(sums_us[int(self.whole), list(self.kinds), self.op].sum())


def sums_by_op(graph: OpGraph, kind: Ints, owner: Ints, taken_us: Floats) -> Floats:
    """Sums of `taken_us`, each of a kind (its place in `KINDS`) and of the op that owns it: of each
    op alone and with all it calls, `[2, kinds, ops]`."""
    own = np.zeros((len(KINDS), len(graph)))
    np.add.at(own, (kind, owner), taken_us)
    whole = own.copy()
    for index in range(len(graph) - 1, -1, -1):
        if (parent := graph.ops[index].parent) != NO_OP:
            whole[:, parent] += whole[:, index]
    return np.stack([own, whole])


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
        kind = np.array([KINDS.index(lowered.pieces[at].kind) for at in known], np.int64)
        return cls(graph, lowered.rows.take(index), kind, lowered.owner[index])

    def duration_us(self, machine: Cluster) -> Floats:
        """Per piece, on `machine`."""
        if not len(self.owner):
            return np.zeros(0)
        return durations_of(place_collectives(self.rows, machine), machine).duration_us

    def by_op(self, taken_us: Floats) -> Floats:
        """Sums of what each piece takes."""
        return sums_by_op(self.graph, self.kind, self.owner, taken_us)

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
    """The ops of a graph on the machine of the trace; sums by op."""

    pieces: OpPieces
    modelled: Floats
    by_shapes: Floats
    """Of `modelled`, the pieces whose shapes say all of their work."""
    measured: Floats

    @classmethod
    def of(cls, pieces: OpPieces, machine: Cluster, measured: Floats) -> Source:
        """`pieces` on `machine`, with what the operations of their ops took."""
        taken, ops = pieces.duration_us(machine), pieces.rows.op
        of_op = {op: OPS[op].family in _BY_SHAPES and op not in ROWS_ANYWHERE for op in set(ops)}
        by_shapes = taken * np.array([of_op[op] for op in ops], bool)
        return cls(pieces, pieces.by_op(taken), pieces.by_op(by_shapes), measured)

    def unexplained_log(self, chosen: ComparedOps) -> float:
        """Logarithm of measured over modelled time of `chosen`, by the share that shapes say all
        of; 0 where nothing was measured."""
        modelled, measured = chosen.sum_us(self.modelled), chosen.sum_us(self.measured)
        if modelled <= 0 or measured <= 0:
            return 0.0
        return chosen.sum_us(self.by_shapes) / modelled * float(np.log(measured / modelled))

    def compared(self, op: int, kind: str, after: Floats) -> ComparedOps | None:
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


@dataclass(frozen=True)
class Launches:
    """The ops of one rank, and what they launched."""

    ops: OpGraph
    own: Ints
    """Which of the device operations in question the rank ran."""
    op: Ints
    """Per operation of `own`, the op that launched it, or `NO_OP`."""
    kinds: list[str]
    tf32_matmul: bool

    def operations(self) -> Iterator[tuple[int, int, str]]:
        """(place among those in question, op, kind) of each."""
        return zip(self.own.tolist(), self.op.tolist(), self.kinds, strict=True)

    def pieces_on(self, machine: Cluster) -> OpPieces:
        """What the ops become on a machine."""
        return OpPieces.on(self.ops, machine, tf32_matmul=self.tf32_matmul)

    def on_source(self, machine: Cluster, taken: Floats) -> Source:
        """The ops on the trace's `machine`, with what all operations have `taken`."""
        known = self.op != NO_OP
        kind = np.array([KINDS.index(kind) for kind in self.kinds], np.int64)
        measured = sums_by_op(self.ops, kind[known], self.op[known], taken[self.own[known]])
        return Source.of(self.pieces_on(machine), machine, measured)


def launches(trace: Trace, graph: ExecutionGraph, rows: Ints) -> Iterator[Launches]:
    """Per rank its ops, and which of them launched which of `rows`.

    Raises `TraceError` where the trace records no shapes.
    """
    graphs = {launched.rank: launched for launched in op_graph(trace)}
    ranks = graph.nodes_.rank[rows]
    tf32_matmul = any(uses_tf32(rank) for rank in trace.ranks)
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        ops = with_placement(graphs[rank.rank], rank, links)
        op_of_row = np.full(len(rank), NO_OP, np.int64)
        op_of_row[links.device_rows] = launched_by(ops, rank, links)
        own = np.flatnonzero(ranks == rank.rank)
        kinds = [_KIND[NodeKind(kind)] for kind in graph.nodes_.kind[rows[own]].tolist()]
        yield Launches(ops, own, op_of_row[graph.nodes_.row[rows[own]]], kinds, tf32_matmul)
