"""Device operations put into a measured graph, before and behind a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

KernelWork = tuple[str, float]
"""A kernel's name and its microseconds."""
_OUTPUT_EDGES = (EdgeKind.EVENT_WAIT, EdgeKind.DATA)
"""Edges by which other streams take what a collective brought."""
_INPUT_EDGES = (EdgeKind.EVENT_WAIT_COLLECTIVE, EdgeKind.EVENT_WAIT, EdgeKind.DATA)


@dataclass(frozen=True)
class CollectiveNeighbours:
    """Kernels around one collective: what it waits for, what overlaps it, what follows it."""

    arrival: int
    transfer: int
    """The same node where ranks do not meet."""
    before: Sequence[KernelWork] = ()
    beside: Sequence[KernelWork] = ()
    """On the stream of `before`, behind it; the collective does not wait for these."""
    behind: Sequence[KernelWork] = ()


def with_kernels(graph: ExecutionGraph, around: Sequence[CollectiveNeighbours]) -> ExecutionGraph:
    """`graph` with the kernels of `around` in it.

    Those before a collective run on the stream that made its input, behind the operation that the
    collective waited for; those behind it on the stream of the first operation that waited for it,
    which now waits for them. Those between the same two operations of a stream follow one another.
    Lags between them are those of a stream. Where nothing of another stream is known to come before
    or behind a collective, they run on the collective's own.
    """
    draft, nodes = _Draft(graph), graph.nodes_
    for one in sorted(around, key=lambda one: nodes.start_us[one.arrival]):
        draft.put_before(one)
    for one in sorted(around, key=lambda one: nodes.end_us[one.transfer]):
        draft.put_behind(one)
    return draft.graph()


class _Draft:
    """The graph's edges as lists, and the nodes that are new.

    `gaps` has the last new node between an operation and the next one of its stream, by the former;
    by the latter, less the number of nodes, where it is the first of its stream.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        self.of = graph
        edges = graph.edges_
        self.source, self.kind = edges.source.copy(), edges.kind
        self.new_nodes: list[tuple[str, float, int, int, float]] = []
        self.new_edges: list[tuple[int, int, int]] = []
        self.gaps: dict[int, int] = {}
        self.by_target = graph.predecessors
        self.leaving = np.argsort(edges.source, kind="stable")
        self.first_leaving = np.searchsorted(edges.source[self.leaving], np.arange(len(graph) + 1))
        pairs = graph.neighbours
        self.next = dict(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))
        self.previous = {after: before for before, after in self.next.items()}

    def put_before(self, one: CollectiveNeighbours) -> None:
        """What the collective waits for, and what runs beside it."""
        nodes = self.of.nodes_
        produced = [e for e in self._into(one.arrival) if self.kind[e] in _INPUT_EDGES]
        made_by = max(
            self.of.edges_.source[produced].tolist(),
            key=lambda node: nodes.end_us[node],
            default=self.previous.get(one.arrival, NONE),
        )
        if made_by == NONE:
            return
        at_us = float(nodes.start_us[one.arrival])
        last = self._chain(made_by, made_by, one.before, at_us)
        if one.before:
            self.new_edges.append((last, one.arrival, EdgeKind.EVENT_WAIT_COLLECTIVE))
        self._chain(made_by, made_by, one.beside, at_us)

    def put_behind(self, one: CollectiveNeighbours) -> None:
        """What those who waited for the collective now wait for."""
        if not one.behind:
            return
        nodes, transfer = self.of.nodes_, one.transfer
        handed = [e for e in self._out_of(transfer) if self.kind[e] in _OUTPUT_EDGES]
        taken = self.of.edges_.target[handed].tolist()
        first = min(taken, key=lambda node: nodes.start_us[node], default=NONE)
        gap = transfer if first == NONE else self.previous.get(first, first - len(self.of))
        begin = len(self.of) + len(self.new_nodes)
        like = transfer if first == NONE else first
        last = self._chain(gap, like, one.behind, float(nodes.end_us[transfer]))
        self.new_edges.append((transfer, begin, EdgeKind.EVENT_WAIT))
        if first == NONE:
            handed = [e for e in self._out_of(transfer) if self.kind[e] != EdgeKind.RENDEZVOUS]
        self.source[handed] = last

    def _chain(self, gap: int, like: int, work: Sequence[KernelWork], at_us: float) -> int:
        """Kernels one after another in `gap`, on the stream of `like`; the last one in the gap."""
        nodes = self.of.nodes_
        rank, resource = int(nodes.rank[like]), int(nodes.resource[like])
        for label, duration_us in work:
            node, behind = len(self.of) + len(self.new_nodes), self.gaps.get(gap, gap)
            self.new_nodes.append((label, duration_us, rank, resource, at_us))
            if behind >= 0:
                self.new_edges.append((behind, node, EdgeKind.STREAM))
            self.gaps[gap] = node
        return self.gaps.get(gap, gap)

    def _into(self, node: int) -> list[int]:
        first, by_target = self.by_target
        result: list[int] = by_target[first[node] : first[node + 1]].tolist()
        return result

    def _out_of(self, node: int) -> list[int]:
        result: list[int] = self.leaving[
            self.first_leaving[node] : self.first_leaving[node + 1]
        ].tolist()
        return result

    def graph(self) -> ExecutionGraph:
        """The graph in which the next operation of each stream waits for what is new before it."""
        of, count = self.of, len(self.new_nodes)
        if not count:
            return of
        for gap, last in self.gaps.items():
            follower = self.next.get(gap) if gap >= 0 else gap + len(of)
            if follower is not None:
                self.new_edges.append((last, follower, EdgeKind.STREAM))
        labels, taken, rank, resource, start = zip(*self.new_nodes, strict=True)
        source, target, kind = np.array(self.new_edges, np.int64).reshape(-1, 3).T
        lag_us = np.zeros(len(kind))
        for code in np.unique(kind):
            known_us = of.edges_.lag_us[of.edges_.kind == code]
            lag_us[kind == code] = np.median(known_us) if len(known_us) else 0.0
        return replace(
            of,
            nodes_=of.nodes_.with_more(
                count,
                kind=NodeKind.KERNEL,
                cause=Cause.COMPUTE,
                scope=Scope.COMPUTE,
                rank=rank,
                resource=resource,
                row=NONE,
                start_us=start,
                duration_us=taken,
                release_us=-np.inf,
            ),
            edges_=replace(of.edges_, source=self.source).and_(
                Edges.of(source, target, kind, lag_us=lag_us)
            ),
            labels=(*of.labels, *labels),
            annotations=(*of.annotations, *("",) * count),
        )
