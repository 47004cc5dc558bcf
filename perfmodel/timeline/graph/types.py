"""The execution graph: what ran on which resource, and what each piece had to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask, has_code, is_among
from perfmodel.errors import GraphError
from perfmodel.timeline.graph.kinds import DEVICE_KINDS, Cause, EdgeKind, NodeKind, Scope
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

Codes = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Nodes:
    """Columns of the nodes; one row per node.

    `start_us` is when the node began on the machine that was measured, waiting excluded (a call
    that waited starts when its wait is over); `duration_us` is what it takes by itself.
    `release_us` is the earliest start (-inf: none), for what began before anything it depends on
    was recorded. `resource` is `rank/thread` or `rank/device/stream` by index of
    `ExecutionGraph.resources`. Of traces, codes are int8, other integers int32.
    """

    kind: Codes
    cause: Codes
    scope: Codes
    rank: Ints
    resource: Ints
    row: Ints
    """Row of the trace event behind the node (a gap: of the operator that follows), or -1."""
    start_us: Floats
    duration_us: Floats
    release_us: Floats

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def end_us(self) -> Floats:
        return self.start_us + self.duration_us

    def with_more(self, count: int, **columns: object) -> Nodes:
        """These nodes and, behind them, `count` more: per column one value, or one for each. Unless
        told they have no scope, row, length and earliest start."""
        columns = {"scope": Scope.NONE, "row": NONE, "duration_us": 0.0, **columns}
        columns.setdefault("release_us", -np.inf)
        grown = {}
        for each in fields(Nodes):
            old = getattr(self, each.name)
            more = np.asarray(columns[each.name], old.dtype)
            grown[each.name] = np.concatenate([old, np.broadcast_to(more, count)])
        return Nodes(**grown)


@dataclass(frozen=True)
class Edges:
    """Columns of the edges: node `target` starts at or after the end of `source`, less the share
    `overlap_frac` of its duration, plus `lag_us`.

    A negative lag lets the two overlap; so does the last wave of a kernel that filled the device.
    Lags are constants per trace and kind, never an event's own residual.
    """

    source: Ints
    target: Ints
    kind: Codes
    overlap_frac: Floats
    lag_us: Floats

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(
        cls,
        source: Ints,
        target: Ints,
        kind: Ints | EdgeKind,
        *,
        overlap_frac: Floats | float = 0.0,
        lag_us: Floats | float = 0.0,
    ) -> Edges:
        """Edges of one kind, or of one each."""
        return cls(
            source.astype(np.int32),
            target.astype(np.int32),
            np.broadcast_to(np.asarray(kind, np.int8), len(source)),
            np.broadcast_to(np.asarray(overlap_frac, np.float64), len(source)),
            np.broadcast_to(np.asarray(lag_us, np.float64), len(source)),
        )

    def where(self, kept: Mask | Ints | slice) -> Edges:
        """The edges of which `kept` is true, or that it names."""
        return Edges(*(getattr(self, each.name)[kept] for each in fields(Edges)))

    def shifted(self, by: int) -> Edges:
        return replace(self, source=self.source + by, target=self.target + by)

    def and_(self, *more: Edges) -> Edges:
        columns = [each.name for each in fields(Edges)]
        parts = (self, *more)
        return Edges(*(np.concatenate([getattr(p, name) for p in parts]) for name in columns))

    def ready_us(self, start_us: Floats, duration_us: Floats) -> Floats:
        """Per edge: the earliest start it allows its target, given the nodes' times."""
        start_us, duration_us = start_us.take(self.source), duration_us.take(self.source)
        return start_us + duration_us * (1 - self.overlap_frac) + self.lag_us

    def latest(self, ready_us: Floats, wins: Mask | None = None) -> Ints:
        """Per target, ascending, the edge that sets it free last; of those that tie, the last one
        that `wins`, else the last."""
        target = self.target.astype(np.int64)
        latest_us = np.full(target.max(initial=NONE) + 1, -np.inf)
        np.maximum.at(latest_us, target, ready_us)
        edge = np.flatnonzero(ready_us == latest_us[target])
        if wins is not None:
            edge = edge[np.argsort(wins[edge], kind="stable")]
        last = np.full(len(latest_us), NONE)
        last[target[edge]] = edge
        result: Ints = last[last != NONE]
        return result


@dataclass(frozen=True)
class StepMarks:
    """Per rank and step: the nodes of zero length at its start and end."""

    rank: Ints
    name: tuple[str, ...]
    start: Ints
    end: Ints


@dataclass(frozen=True)
class CarriedEdges:
    """Edges between steps that repeat: `edges.target` of the step `distance` later than the one of
    `edges.source`."""

    edges: Edges
    distance: Ints


@dataclass(frozen=True)
class ExecutionGraph:
    """Nodes bound to resources, and what each had to wait for."""

    nodes_: Nodes
    edges_: Edges
    marks: StepMarks
    resources: tuple[str, ...]
    labels: tuple[str, ...]
    """Per node, what people call it."""
    annotations: tuple[str, ...]
    """Per node, the innermost annotation around it, or an empty text."""
    unknown: Cause = Cause.UNEXPLAINED
    """What time without a visible reason is due to: `RECORDING_MISSING` in files that hold only
    part of what ran."""
    process_groups: dict[int, str] = field(default_factory=dict)
    """Collective node to its process group, where the file names it."""
    warnings: tuple[str, ...] = ()
    """What a user should know of the files behind the graph, and of how it was made."""
    arrivals: Ints | None = None
    """Where ranks meet: rows (transfer, arrival) of collective nodes. The device is taken from the
    arrival on, waiting included."""
    carried: CarriedEdges | None = None
    """What a step waits for of the steps before it, in a graph of one step that repeats."""

    def __len__(self) -> int:
        return len(self.nodes_)

    def __repr__(self) -> str:
        return f"ExecutionGraph({len(self):,} nodes, {len(self.edges_):,} edges)"

    @cached_property
    def on_device(self) -> NDArray[np.bool_]:
        streams = np.array(["/gpu" in name for name in self.resources], bool)
        is_work = has_code(self.nodes_.kind, DEVICE_KINDS)
        return is_work & streams[self.nodes_.resource] if len(streams) else is_work

    def device_span(self, rank: int | None = None) -> tuple[Ints, Ints]:
        """(first node, last node) of each device operation, of one rank or all."""
        last = np.flatnonzero(self.on_device)
        if rank is not None:
            last = last[self.nodes_.rank[last] == rank]
        if self.arrivals is None:
            return last, last
        first = np.arange(len(self))
        first[self.arrivals[:, 0]] = self.arrivals[:, 1]
        last = last[~np.isin(last, self.arrivals[:, 1])]
        return first[last], last

    @cached_property
    def nodes(self) -> pd.DataFrame:
        import pandas as pd

        n = self.nodes_
        columns = {
            "label": [whole_text(label) for label in self.labels],
            "kind": names(NodeKind, n.kind),
            "cause": names(Cause, n.cause),
            "scope": names(Scope, n.scope),
            "rank": n.rank,
            "resource": [self.resources[r] for r in n.resource.tolist()],
            "start_us": n.start_us,
            "duration_us": n.duration_us,
        }
        return pd.DataFrame(columns)

    @property
    def edges(self) -> pd.DataFrame:
        import pandas as pd

        columns = ("source", "target", "kind", "lag_us", "overlap_frac")
        frame = pd.DataFrame({name: getattr(self.edges_, name) for name in columns})
        return frame.assign(kind=names(EdgeKind, self.edges_.kind))

    @cached_property
    def order(self) -> Ints:
        """The nodes so that every edge goes forward.

        Measured starts nearly give it; where they do not (clocks that disagree, rounding), the
        nodes are sorted properly. Raises `GraphError` naming a cycle.
        """
        order = np.lexsort((self.nodes_.end_us, self.nodes_.start_us))
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        source, target = position.take(self.edges_.source), position.take(self.edges_.target)
        backwards = source >= target
        if not backwards.any():
            return order
        result = topological(len(order), source, target)
        if len(result) < len(order):
            import networkx as nx

            cycle = nx.find_cycle(
                nx.DiGraph(list(zip(source.tolist(), target.tolist(), strict=True)))
            )
            labels = [self.labels[order[at]] for at, _ in reversed([*cycle, cycle[0]])]
            raise GraphError(f"the graph has a cycle: {' <- '.join(labels)}")
        return order[result]

    @cached_property
    def incoming(self) -> tuple[list[int], list[int], Ints]:
        """The edges into each node: per node where its own begin, their sources in that order, and
        which edges these are."""
        by_target = np.argsort(self.edges_.target, kind="stable")
        first = np.searchsorted(self.edges_.target[by_target], np.arange(len(self) + 1))
        return first.tolist(), self.edges_.source[by_target].tolist(), by_target

    @cached_property
    def unconnected(self) -> tuple[Ints, Ints]:
        """Each node of a thread or stream and the next one there, where no edge between the two
        says how far they may overlap."""
        nodes, edges = self.nodes_, self.edges_
        order = self.order[nodes.kind[self.order] != NodeKind.MARK]
        order = order[np.argsort(nodes.resource[order], kind="stable")]
        same = np.diff(nodes.resource[order]) == 0
        before, after = order[:-1][same], order[1:][same]
        key = edges.source.astype(np.int64) * len(self) + edges.target
        apart = ~is_among(before * len(self) + after, key)
        return before[apart], after[apart]

    def to_networkx(self) -> nx.MultiDiGraph:
        """The graph for people: node and edge attributes as in `nodes` and `edges`.

        Two nodes may have several edges, such as data and occupancy.
        """
        import networkx as nx

        graph = nx.MultiDiGraph()
        graph.add_nodes_from((i, row) for i, row in enumerate(self.nodes.to_dict("records")))
        graph.add_edges_from(
            (row.pop("source"), row.pop("target"), row) for row in self.edges.to_dict("records")
        )
        return graph


def acyclic(graph: ExecutionGraph, where: str) -> ExecutionGraph:
    """The graph itself. Raises `GraphError` naming `where` where what waits for what is a cycle."""
    try:
        graph.order  # noqa: B018 (sorting finds the cycle)
    except GraphError as error:
        raise GraphError(f"{where}: {error}: the times of this trace do not fit") from None
    return graph


def topological(count: int, source: Ints, target: Ints) -> list[int]:
    """Of so many places, those in no cycle of the edges and behind none, the lowest first where
    edges allow it."""
    from heapq import heappop, heappush

    by_source = np.argsort(source, kind="stable")
    targets = target[by_source].tolist()
    first = np.searchsorted(source[by_source], np.arange(count + 1)).tolist()
    waiting = np.bincount(target, minlength=count).tolist()
    ready = [at for at, edges in enumerate(waiting) if not edges]
    order = []
    while ready:
        at = heappop(ready)
        order.append(at)
        for each in targets[first[at] : first[at + 1]]:
            waiting[each] -= 1
            if not waiting[each]:
                heappush(ready, each)
    return order


def names(of: type[IntEnum], codes: Codes) -> list[str]:
    """The names of codes in lower case; empty of -1."""
    texts = [*(each.name.lower() for each in of), ""]
    return [texts[code] for code in codes.tolist()]


def whole_text(text: str) -> str:
    """Without halves of characters."""
    return text.encode("utf-8", "replace").decode()
