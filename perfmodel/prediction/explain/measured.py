"""Why nodes of a replay or a transfer take what they take: events, changes, target over source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.host import Profile
from perfmodel.graph.kinds import EdgeKind, NodeKind, Scope
from perfmodel.graph.measured_waits import MEAN_LAG_KINDS, NO_LAG
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import FigureRead, figures_used
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
from perfmodel.prediction.ratios import OpPieces
from perfmodel.prediction.scheduled import HostCosts, place_collectives
from perfmodel.prediction.transferred import TransferredDurations, kernel_keys
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.schedule import deciding_edges, measured
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

SCALE_TOLERANCE_US = 1e-6
MAX_NAMESAKES = 3
"""Kernels of the same name whose ratios are listed; the mean is of all."""


_Ratio = tuple[str, str, Terms, tuple[FigureRead, ...], tuple[Reason, ...]]
"""What a ratio is, its formula, terms, figures and parts."""


@dataclass(frozen=True)
class MeasuredExplainer:
    """A measured graph, `moved` to another machine if it was, and scheduled again with
    `duration_us` per node under `edits`."""

    trace: Trace
    graph: ExecutionGraph
    duration_us: Floats
    edits: Sequence[Scale] = ()
    overheads: tuple[str, Profile] | None = None
    """Name and profile of what took the place of the measured host costs."""
    moved: TransferredDurations | None = None

    def lag_source(self, edge: EdgeKind) -> str:
        """The constant of the kind in this trace, and what it is of."""
        unchanged = "" if self.moved is None else "; taken over unchanged"
        if edge in NO_LAG:
            return f"fixed: edges of this kind have no lag, or that of rounding alone{unchanged}"
        count = int((deciding_edges(measured(self.graph)).kind == edge).sum())
        what = "mean" if edge in MEAN_LAG_KINDS else "median"
        return (
            f"{what} over the trace's edges of this kind that decided a start ({count} do)"
            f"{unchanged}"
        )

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
        """The measured duration, or that of the profile that was given; the ratio by which it was
        moved; and the what-ifs that changed it."""
        source = self._source(node)
        source = source if self.moved is None else self._moved(node, source, self.moved)
        taken_us = float(self.duration_us[node])
        applied = [edit for edit in self.edits if edit.matches(self.graph)[node]]
        if not applied and abs(taken_us - source.duration_us) <= SCALE_TOLERANCE_US:
            return source
        terms: Terms = {"before_us": source.duration_us}
        terms |= {f"{edit.text} factor": edit.factor for edit in applied}
        formula = "what it took x the factors of the what-ifs"
        factor = float(np.prod([edit.factor for edit in applied]))
        beside_us = taken_us - factor * source.duration_us
        if abs(beside_us) > SCALE_TOLERANCE_US:
            terms["beside_others_us"] = beside_us
            formula += ", what a codec makes of it, and what it loses to others beside it"
        return Reason("what-if", formula, taken_us, terms, (), (source,))

    def _source(self, node: int) -> Reason:
        is_host = self.graph.nodes_.scope[node] == Scope.HOST
        if self.overheads is not None and is_host and overhead_of(self.graph, node):
            name, profile = self.overheads
            costs = HostCosts(profile, 1.0, "", name=name)
            return profile_reason(self.graph, node, profile, costs, name)
        return measured_reason(self.trace, self.graph, node)

    @cached_property
    def _rows(self) -> Ints:
        return self.graph.device_span()[1]

    def _moved(self, node: int, was: Reason, moved: TransferredDurations) -> Reason:
        if self.graph.nodes_.scope[node] in (Scope.HOST, Scope.ALLOCATOR):
            here, there = moved.source.node.host, moved.target.node.host
            return speed_reason(was, host_ratio(here, there), here, there)
        at = np.flatnonzero(self._rows == node)
        if not len(at):
            return was
        place = int(at[0])
        ratio = float(moved.ratio[place])
        explain = self._by_roofline
        if not np.isnan(moved.by_op[place]):
            explain = self._by_op
        elif not np.isnan(moved.by_name[place]):
            explain = self._by_name
        what, formula, own, figures, parts = explain(moved, place, was)
        terms = {"measured_us": was.duration_us, "ratio": ratio, **own}
        return Reason(what, formula, was.duration_us * ratio, terms, figures, (was, *parts))

    def _by_op(self, moved: TransferredDurations, place: int, was: Reason) -> _Ratio:
        """Models of the op's pieces on both machines, summed."""
        chosen, before, after = moved.compared[place]
        name = after.graph.ops[chosen.op].name
        terms: Terms = {
            "op": name,
            "unexplained_factor": float(np.exp(before.unexplained_log(chosen))),
            "carried_frac": moved.carried_frac,
        }
        parts = tuple(
            _side(machine, pieces, pieces.counted(chosen), f"{name} on {machine.name}")
            for machine, pieces in ((moved.source, before.pieces), (moved.target, after))
        )
        formula = (
            "measured time x what the op's pieces take on the target over the source x "
            "unexplained_factor ^ (carried_frac - 1)"
        )
        return "ratio of models", formula, terms, (), parts

    def _by_name(self, moved: TransferredDurations, place: int, was: Reason) -> _Ratio:
        """The mean ratio of kernels of the same name and grid, else of the same name."""
        key = kernel_keys(self.trace, self.graph, self._rows)
        known = ~np.isnan(moved.by_op)
        alike = np.flatnonzero(known & (key == key[place]).all(axis=1))
        if not len(alike):
            alike = np.flatnonzero(known & (key[:, :2] == key[place, :2]).all(axis=1))
        terms: Terms = {"kernels_of_the_name": len(alike)}
        for each in alike[:MAX_NAMESAKES].tolist():
            terms[f"ratio of node {self._rows[each]}"] = float(moved.by_op[each])
        formula = "measured time x the mean ratio, by time, of kernels of its name that have one"
        return "ratio of namesakes", formula, terms, (), ()

    def _by_roofline(self, moved: TransferredDurations, place: int, was: Reason) -> _Ratio:
        """Rates of the class that the kernel's name tells."""
        label = self.graph.labels[self._rows[place]]
        (family,), (dtype,) = families_of_kernels([label]), dtypes_of_kernels([label])
        machines = moved.source, moved.target
        used = tuple(figure for each in machines for figure in figures_used(each, ("device",)))
        terms: Terms = {"family": family, "dtype": dtype, "class": CLASS_OF_FAMILY[family]}
        formula = (
            "floor of the target + (measured - floor of the source) x rate of the source over the "
            "target's, of the class that the kernel's name tells"
        )
        return "ratio of rooflines", formula, terms, used, ()


def _side(machine: Cluster, pieces: OpPieces, counted: Ints, what: str) -> Reason:
    """What the op's pieces take on one machine."""
    rows = place_collectives(pieces.rows, machine)
    parts = tuple(reason_of_row(rows, machine, at) for at in counted.tolist())
    return Reason(what, "sum of its pieces", sum(each.duration_us for each in parts), {}, (), parts)


def measured_reason(trace: Trace, graph: ExecutionGraph, node: int) -> Reason:
    """The event behind a node, as the file has it."""
    nodes = graph.nodes_
    taken_us, row = float(nodes.duration_us[node]), int(nodes.row[node])
    if nodes.kind[node] == NodeKind.MARK:
        return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)
    rank = next((each for each in trace.ranks if each.rank == nodes.rank[node]), None)
    if rank is None or row == NONE:
        return Reason("measured wait", "what no event or dependency explains", taken_us)
    what, formula = "measured event", "the event's duration"
    if graph.arrivals is not None and node in graph.arrivals:
        what = "measured collective"
        formula = (
            "where ranks meet: of the ranks' durations the shortest is the transfer; the arrival "
            "takes none of it, and waiting is not stored"
        )
    elif abs(float(rank.duration_us[row]) - taken_us) > SCALE_TOLERANCE_US:
        what = "measured stretch"
        formula = (
            "a stretch of its thread between events, operators and steps, waiting excluded; the "
            "event is the one that it lies in, or leads to"
        )
    return Reason(what, formula, taken_us, _event(rank, row))


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
