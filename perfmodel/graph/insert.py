"""Device operations put into a measured graph, before and behind a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.graph.kinds import STREAM_KINDS, Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes
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
    which now waits for them. Lags between them are those of a stream. Where nothing of another
    stream is known to come before or behind a collective, they run on the collective's own.
    """
    draft = _Draft(graph)
    for one in around:
        draft.put(one)
    return draft.graph()


class _Draft:
    """The graph's edges as lists, and the nodes that are new."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self.of = graph
        edges = graph.edges_
        self.source, self.kind = edges.source.copy(), edges.kind
        self.new_nodes: list[tuple[str, float, int, int, float]] = []
        self.new_edges: list[tuple[int, int, int]] = []
        self.by_target = graph.predecessors
        self.leaving = np.argsort(edges.source, kind="stable")
        self.first_leaving = np.searchsorted(edges.source[self.leaving], np.arange(len(graph) + 1))
        self.followers = _followers(graph)

    def put(self, one: CollectiveNeighbours) -> None:
        nodes = self.of.nodes_
        produced = [e for e in self._into(one.arrival) if self.kind[e] in _INPUT_EDGES]
        made_by = max(
            self.source[produced].tolist(), key=lambda node: nodes.end_us[node], default=NONE
        )
        at_us = float(nodes.start_us[one.arrival])
        if made_by == NONE:
            made_by = self._before_on_stream(one.arrival)
        if made_by != NONE:
            last = self._chain(made_by, one.before, one.arrival, at_us)
            if last != made_by:
                self.new_edges.append((last, one.arrival, EdgeKind.EVENT_WAIT_COLLECTIVE))
            aside = self._chain(last, one.beside, made_by, at_us)
            follower = self.followers.get(made_by)
            if aside != made_by and follower is not None and follower != one.arrival:
                self.new_edges.append((aside, follower, EdgeKind.STREAM))
        self._behind(one)

    def _behind(self, one: CollectiveNeighbours) -> None:
        nodes = self.of.nodes_
        handed = [e for e in self._out_of(one.transfer) if self.kind[e] in _OUTPUT_EDGES]
        taken = self.of.edges_.target[handed].tolist()
        first = min(taken, key=lambda node: nodes.start_us[node], default=one.transfer)
        end_us = float(nodes.end_us[one.transfer])
        last = self._chain(one.transfer, one.behind, first, end_us, EdgeKind.EVENT_WAIT)
        if last == one.transfer:
            return
        chain = len(self.of) + len(self.new_nodes) - len(one.behind)
        before = self._before_on_stream(first) if first != one.transfer else NONE
        if before not in (NONE, one.transfer):
            self.new_edges.append((before, chain, EdgeKind.STREAM))
        if not handed:
            handed = [e for e in self._out_of(one.transfer) if self.kind[e] != EdgeKind.RENDEZVOUS]
        self.source[handed] = last

    def _chain(
        self,
        behind: int,
        work: Sequence[KernelWork],
        like: int,
        at_us: float,
        kind: EdgeKind = EdgeKind.STREAM,
    ) -> int:
        """Kernels one after another; the last of them, or `behind` where there are none."""
        nodes = self.of.nodes_
        of_stream = behind if kind == EdgeKind.STREAM and behind < len(self.of) else like
        for label, duration_us in work:
            node = len(self.of) + len(self.new_nodes)
            rank, resource = int(nodes.rank[of_stream]), int(nodes.resource[of_stream])
            self.new_nodes.append((label, duration_us, rank, resource, at_us))
            self.new_edges.append((behind, node, kind))
            behind, kind = node, EdgeKind.STREAM
        return behind

    def _into(self, node: int) -> list[int]:
        first, by_target = self.by_target
        found: list[int] = by_target[first[node] : first[node + 1]].tolist()
        return found

    def _out_of(self, node: int) -> list[int]:
        found: list[int] = self.leaving[
            self.first_leaving[node] : self.first_leaving[node + 1]
        ].tolist()
        return found

    def _before_on_stream(self, node: int) -> int:
        """The operation before `node` on its own stream, or -1."""
        sources = [int(self.source[e]) for e in self._into(node) if self.kind[e] in STREAM_KINDS]
        return sources[0] if sources else NONE

    def graph(self) -> ExecutionGraph:
        of, count = self.of, len(self.new_nodes)
        if not count:
            return of
        labels, taken, rank, resource, start = zip(*self.new_nodes, strict=True)
        nodes = of.nodes_
        same = {
            "kind": NodeKind.KERNEL,
            "cause": Cause.COMPUTE,
            "scope": Scope.COMPUTE,
            "row": NONE,
            "release_us": -np.inf,
        }
        own = {
            "rank": rank,
            "resource": resource,
            "start_us": start,
            "duration_us": taken,
        } | {key: [value] * count for key, value in same.items()}
        grown = Nodes(
            **{
                key: np.append(getattr(nodes, key), np.array(value, getattr(nodes, key).dtype))
                for key, value in own.items()
            }
        )
        table = np.array(self.new_edges, np.int64).reshape(-1, 3)
        edges = of.edges_
        lag = _lag_us(of)
        return replace(
            of,
            nodes_=grown,
            edges_=Edges(
                np.append(self.source, table[:, 0]),
                np.append(edges.target, table[:, 1]),
                np.append(edges.kind, table[:, 2]),
                np.append(edges.overlap_frac, np.zeros(len(table))),
                np.append(edges.lag_us, [lag[int(kind)] for kind in table[:, 2]]),
            ),
            labels=(*of.labels, *labels),
            annotations=(*of.annotations, *("",) * count),
        )


def _followers(graph: ExecutionGraph) -> dict[int, int]:
    """Device operation to the next one on its stream."""
    edges = graph.edges_
    chosen = np.flatnonzero(np.isin(edges.kind, STREAM_KINDS) & graph.on_device[edges.target])
    return dict(zip(edges.source[chosen].tolist(), edges.target[chosen].tolist(), strict=True))


def _lag_us(graph: ExecutionGraph) -> dict[int, float]:
    """The graph's lag of each kind that is put in, by the median; 0 where it has none."""
    edges = graph.edges_
    found = {}
    for kind in (EdgeKind.STREAM, EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE):
        own = edges.lag_us[edges.kind == kind]
        found[int(kind)] = float(np.median(own)) if len(own) else 0.0
    return found


def as_rank(graph: ExecutionGraph, rank: int) -> ExecutionGraph:
    """`graph`, of a single rank, as if `rank` had run it."""
    nodes, marks = graph.nodes_, graph.marks
    return replace(
        graph,
        nodes_=replace(nodes, rank=np.full(len(nodes), rank, np.int64)),
        marks=replace(marks, rank=np.full(len(marks.name), rank, np.int64)),
        resources=tuple(f"{rank}/{name.partition('/')[2]}" for name in graph.resources),
    )
