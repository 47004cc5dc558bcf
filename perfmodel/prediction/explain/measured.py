"""Why nodes of a replay or a transfer take what they take: events, changes, target over source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.host import Profile
from perfmodel.graph.kinds import EdgeKind, NodeKind, Scope
from perfmodel.graph.measured_waits import MEAN_LAG_KINDS, NO_LAG
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import figures_used
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import CLASS_OF_FAMILY
from perfmodel.prediction.explain.modelled import (
    overhead_of,
    profile_reason,
    reason_of_row,
    speed_reason,
)
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.ratio_by_bound import host_ratio
from perfmodel.prediction.ratios import OpDurations, OpPieces, Source
from perfmodel.prediction.scheduled import HostCosts, place_collectives
from perfmodel.prediction.transferred import TransferredDurations, kernel_keys, launches
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.schedule import deciding_edges, measured
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

SCALE_TOLERANCE_US = 1e-6


@dataclass(frozen=True)
class ReplayExplainer:
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
            formula += ", what a codec makes of it, and what it loses to others beside it"
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
        return Reason("measured wait", "what no event or dependency explains", taken_us)
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


MAX_NAMESAKES = 3
"""Kernels of the same name whose ratios are told; the mean is of all."""


@dataclass(frozen=True)
class _Sides:
    """The ops of one rank as they are on the source and on the target."""

    launched: dict[int, tuple[int, str]]
    """By place among the device's operations: the op that launched it, and its kind."""
    source: Source
    target: OpPieces
    after: OpDurations


@dataclass(frozen=True)
class TransferExplainer:
    """A measured graph on another machine: `replayed` is what was measured, then what-ifs."""

    replayed: ReplayExplainer
    moved: TransferredDurations
    _made: dict[int, _Sides] = field(default_factory=dict, init=False, compare=False, repr=False)

    def lag_source(self, edge: EdgeKind) -> str:
        """Lags stay as measured."""
        return f"{self.replayed.lag_source(edge)}; taken over unchanged"

    def ops(self) -> Sequence[str]:
        """As of a replay."""
        return self.replayed.ops()

    def reason(self, node: int) -> Reason:
        """The ratio that the node's duration was multiplied by, and both sides of it."""
        return self.replayed.changed(node, self._moved(node))

    def _moved(self, node: int) -> Reason:
        graph, moved = self.replayed.graph, self.moved
        was = self.replayed.source(node)
        if graph.nodes_.scope[node] in (Scope.HOST, Scope.ALLOCATOR):
            here, there = moved.source.node.host, moved.target.node.host
            return speed_reason(was, host_ratio(here, there), here, there)
        at = np.flatnonzero(self._rows == node)
        if not len(at):
            return was
        place = int(at[0])
        ratio = float(moved.ratio[place])
        if not np.isnan(moved.by_op[place]):
            return self._by_op(was, place, ratio)
        if not np.isnan(moved.by_name[place]):
            return self._by_name(was, place, ratio)
        return self._by_roofline(was, node, ratio)

    @cached_property
    def _rows(self) -> Ints:
        return self.replayed.graph.device_span()[1]

    def _by_op(self, was: Reason, place: int, ratio: float) -> Reason:
        """Models of the op's pieces on both machines, summed."""
        sides = self._sides(int(self.replayed.graph.nodes_.rank[self._rows[place]]))
        op, kind = sides.launched[place]
        chosen = sides.source.compared(op, kind, sides.after)
        assert chosen is not None
        name = sides.target.graph.ops[chosen.op].name
        parts = [
            _side(machine, pieces, pieces.counted(chosen), f"{name} on {machine.name}")
            for machine, pieces in (
                (self.moved.source, sides.source.pieces),
                (self.moved.target, sides.target),
            )
        ]
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "op": name,
            "unexplained_factor": float(np.exp(sides.source.unexplained_log(chosen))),
            "carried_frac": self.moved.carried_frac,
        }
        formula = (
            "measured time x what the op's pieces take on the target over the source x "
            "unexplained_factor ^ (carried_frac - 1)"
        )
        taken_us = was.duration_us * ratio
        return Reason("ratio of models", formula, taken_us, terms, (), (was, *parts))

    def _sides(self, rank: int) -> _Sides:
        """The ops of `rank` on both machines, made once."""
        if rank not in self._made:
            self._made[rank] = _sides_of(self, self._rows, rank)
        return self._made[rank]

    def _by_name(self, was: Reason, place: int, ratio: float) -> Reason:
        """The mean ratio of kernels of the same name."""
        key = kernel_keys(self.replayed.trace, self.replayed.graph, self._rows)
        known = ~np.isnan(self.moved.by_op)
        alike = np.flatnonzero(known & (key == key[place]).all(axis=1))
        if not len(alike):
            alike = np.flatnonzero(known & (key[:, :2] == key[place, :2]).all(axis=1))
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "kernels_of_the_name": len(alike),
        }
        firsts = alike[:MAX_NAMESAKES].tolist()
        for each in firsts:
            terms[f"ratio of node {self._rows[each]}"] = float(self.moved.by_op[each])
        formula = "measured time x the mean ratio, by time, of kernels of its name that have one"
        return Reason("ratio of namesakes", formula, was.duration_us * ratio, terms, (), (was,))

    def _by_roofline(self, was: Reason, node: int, ratio: float) -> Reason:
        """Rates of the class that the kernel's name tells."""
        label = self.replayed.graph.labels[node]
        (family,), (dtype,) = families_of_kernels([label]), dtypes_of_kernels([label])
        machines = self.moved.source, self.moved.target
        used = tuple(figure for each in machines for figure in figures_used(each, ("device",)))
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "family": family,
            "dtype": dtype,
            "class": CLASS_OF_FAMILY[family],
        }
        formula = (
            "floor of the target + (measured - floor of the source) x rate of the source over the "
            "target's, of the class that the kernel's name tells"
        )
        return Reason("ratio of rooflines", formula, was.duration_us * ratio, terms, used, (was,))


def _sides_of(moved: TransferExplainer, rows: Ints, rank: int) -> _Sides:
    """Raises `TraceError` where the trace records no shapes."""
    trace, measured_us = moved.replayed.trace, moved.replayed.graph.nodes_.duration_us[rows]
    launched = next(
        sides for sides in launches(trace, moved.replayed.graph, rows) if sides.ops.rank == rank
    )
    source, target = moved.moved.source, moved.moved.target
    pieces = launched.pieces_on(target)
    return _Sides(
        {at: (op, kind) for at, op, kind in launched.operations()},
        launched.on_source(source, measured_us),
        pieces,
        pieces.by_op(pieces.duration_us(target)),
    )


def _side(machine: Cluster, pieces: OpPieces, counted: Ints, what: str) -> Reason:
    """What the op's pieces take on one machine."""
    rows = place_collectives(pieces.rows, machine)
    parts = tuple(reason_of_row(rows, machine, at) for at in counted.tolist())
    return Reason(what, "sum of its pieces", sum(each.duration_us for each in parts), {}, (), parts)
