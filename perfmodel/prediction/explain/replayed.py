"""Why nodes of a replay take what they take: the events behind them, and what was changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.host import Profile
from perfmodel.graph.kinds import EdgeKind, NodeKind, Scope
from perfmodel.graph.measured_waits import MEAN_LAG_KINDS, NO_LAG
from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.explain.modelled import overhead_of, profile_reason
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.scheduled import HostCosts
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.schedule import deciding_edges, measured
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

SCALE_TOLERANCE_US = 1e-6


@dataclass(frozen=True)
class ReplayGrounds:
    """A measured graph, scheduled again with `duration_us` per node."""

    trace: Trace
    graph: ExecutionGraph
    duration_us: Floats
    edits: Sequence[Scale] = ()
    overheads: tuple[str, Profile] | None = None
    """Name and profile of what took the place of the measured host costs."""

    def lag_source(self, edge: EdgeKind) -> str:
        """The constant of the kind in this trace, and what it is of."""
        if edge in NO_LAG:
            return "fixed: edges of this kind have no lag, or that of rounding alone"
        count = int((self._deciding == edge).sum())
        what = "mean" if edge in MEAN_LAG_KINDS else "median"
        return f"{what} over the trace's edges of this kind that decided a start ({count} do)"

    @cached_property
    def _deciding(self) -> np.ndarray:
        return deciding_edges(measured(self.graph)).kind

    def ops(self) -> Sequence[str]:
        """Of device work the operator that launched it."""
        names = [""] * len(self.graph)
        nodes = self.graph.nodes_
        for rank, links in zip(self.trace.ranks, self.trace.links, strict=True):
            op_of_row = np.full(len(rank), NONE, np.int64)
            op_of_row[links.device_rows] = launching_op(rank, links)
            own = (nodes.rank == rank.rank) & (nodes.row != NONE) & self.graph.on_device
            for node in np.flatnonzero(own).tolist():
                op = int(op_of_row[nodes.row[node]])
                names[node] = rank.text(op) if op != NONE else ""
        return names

    def reason(self, node: int) -> Reason:
        """The measured duration, and the what-ifs that changed it."""
        return self.changed(node, self.source(node))

    def changed(self, node: int, source: Reason) -> Reason:
        """`source` of a node with the what-ifs on top."""
        taken_us = float(self.duration_us[node])
        applied = [edit for edit in self.edits if edit.matches(self.graph)[node]]
        if not applied and abs(taken_us - source.duration_us) <= SCALE_TOLERANCE_US:
            return source
        terms: Terms = {"before_us": source.duration_us}
        terms |= {f"{edit.text} factor": edit.factor for edit in applied}
        factor = float(np.prod([edit.factor for edit in applied]))
        beside_us = taken_us - factor * source.duration_us
        if abs(beside_us) > SCALE_TOLERANCE_US:
            terms["beside_others_us"] = beside_us
        formula = "what it took x the factors of the what-ifs"
        if "beside_others_us" in terms:
            formula += ", a codec's shorter payload, and what it loses to others beside it"
        return Reason("what-if", formula, taken_us, terms, (), (source,))

    def source(self, node: int) -> Reason:
        """What a node takes before what-ifs: measured, or of the profile that was given."""
        graph = self.graph
        if self.overheads is not None and graph.nodes_.scope[node] == Scope.HOST:
            name, profile = self.overheads
            if overhead_of(graph, node):
                costs = HostCosts(profile, 1.0, "", name=name)
                return profile_reason(graph, node, profile, costs, name)
        return measured_reason(self.trace, graph, node)


def measured_reason(trace: Trace, graph: ExecutionGraph, node: int) -> Reason:
    """The event behind a node, as the file has it."""
    nodes = graph.nodes_
    taken_us, row = float(nodes.duration_us[node]), int(nodes.row[node])
    kind = NodeKind(int(nodes.kind[node]))
    if kind == NodeKind.MARK:
        return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)
    rank = next((each for each in trace.ranks if each.rank == nodes.rank[node]), None)
    if rank is None or row == NONE:
        return Reason("inserted", "added by a what-if; nothing was measured", taken_us)
    terms = _event(rank, row)
    event_us = float(rank.duration_us[row])
    if graph.arrivals is not None and node in graph.arrivals:
        formula = (
            "where ranks meet: of the ranks' durations the shortest is the transfer; the arrival "
            "takes none of it, and waiting is not stored"
        )
        return Reason("measured collective", formula, taken_us, terms)
    if abs(event_us - taken_us) <= SCALE_TOLERANCE_US:
        return Reason("measured event", "the event's duration", taken_us, terms)
    formula = (
        "a stretch of its thread between events, operators and steps, waiting excluded; the event "
        "is the one that it lies in, or leads to"
    )
    return Reason("measured stretch", formula, taken_us, terms)


def _event(rank: RankTrace, row: int) -> Terms:
    """Who an event is in its file."""
    terms: Terms = {
        "file": rank.where.rsplit("/", 1)[-1],
        "event": int(rank.file_index[row]),
        "name": rank.text(row),
        "start_us": float(rank.start_us[row]),
        "event_us": float(rank.duration_us[row]),
    }
    for name in ("correlation", "stream", "thread", "size_bytes"):
        value = int(getattr(rank, name)[row])
        if value != NONE:
            terms[name] = value
    for name in ("grid", "input_shapes"):
        text = rank.strings[int(getattr(rank, name)[row])]
        if text:
            terms[name] = text
    return terms
