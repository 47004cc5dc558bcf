"""The reasons of nodes, by mode: of models' pieces and profiles; of measured events under what-ifs,
moved by ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.durations import explanations_of
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import FigureRead, figure_read, figures_used
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import DESCRIPTIONS
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import CLASS_OF_FAMILY
from perfmodel.prediction.explain import Reason, Terms, reason_of_row
from perfmodel.prediction.scheduled import (
    OVERHEAD_OF_CAUSE,
    HostCosts,
    ScheduledSteps,
    host_ratio,
    place_collectives,
)
from perfmodel.prediction.transferred import TransferredDurations, kernel_keys
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.measured_waits import MEAN_LAG_KINDS, NO_LAG
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import deciding_edges, measured
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

TOLERANCE_US = 1e-6
HOST_SPEED = "single_thread_ratio"


def _boundary(taken_us: float) -> Reason:
    return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)


def overhead_of(graph: ExecutionGraph, node: int) -> str | None:
    """The overhead type of a host node, `T1` to `T5` and the like; None for others."""
    is_host = graph.nodes_.scope[node] == Scope.HOST
    return OVERHEAD_OF_CAUSE.get(Cause(int(graph.nodes_.cause[node]))) if is_host else None


@dataclass(frozen=True)
class ModelExplainer:
    """Pieces timed by models on `machine`, the host by a profile."""

    found: ScheduledSteps
    machine: Cluster
    costs: HostCosts | None
    host_ratio: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """By rank, what the trace's host times are multiplied with."""

    def lag_source(self, edge: EdgeKind) -> str:
        """The same for all machines."""
        return (
            "lowering/draft.py: one constant per kind of edge, near the middle of what replays of "
            "traces on V100, A100, H100 and RTX 2080 Ti find"
        )

    def ops(self) -> Sequence[str]:
        """Of a piece the operator that launched it."""
        names = [*self.found.ops, ""]
        return [names[piece] for piece in self.found.built.piece.tolist()]

    def decides(self, family: str) -> str:
        """What bounds the longest piece of `family`, as its model calls it; "" if there is none."""
        pieces = [at for at, name in enumerate(self.found.families) if name == family]
        if not pieces:
            return ""
        longest = pieces[int(np.argmax(self.found.durations.duration_us[pieces]))]
        one = self.found.rows.take(np.array([longest], np.int64))
        return explanations_of(one, self.machine)[0].bound_by

    def reason(self, node: int) -> Reason:
        """By the node's model, profile or loader."""
        graph = self.found.timeline.graph
        nodes, rank = graph.nodes_, int(graph.nodes_.rank[node])
        taken_us = float(nodes.duration_us[node])
        piece = int(self.found.built.piece[node])
        if piece != NONE:
            return self._of_piece(piece, taken_us)
        if nodes.row[node] != NONE:
            ratio = self.host_ratio.get(rank, 1.0) if nodes.scope[node] == Scope.HOST else 1.0
            formula = "measured in the trace x host_ratio (its host's speed over the target's)"
            terms: Terms = {"measured_us": taken_us / ratio, "host_ratio": ratio}
            return Reason("measured in the trace", formula, taken_us, terms)
        if overhead_of(graph, node) and self.costs is not None:
            return profile_reason(graph, node, self.costs.profile_of(rank), self.costs)
        return _boundary(taken_us)

    def _of_piece(self, piece: int, taken_us: float) -> Reason:
        about = self.found.pieces[piece]
        why = reason_of_row(self.found.rows, self.machine, piece)
        if about.guessed:
            sizes = "guessed: the op's arguments do not tell"
            why = replace(why, terms={**why.terms, "sizes": sizes})
        if about.launches > 1:
            formula = "an equal share of what all launches of the piece take"
            share_us = why.duration_us / about.launches
            terms: Terms = {"launches": about.launches}
            why = Reason("one of several launches", formula, share_us, terms, parts=(why,))
        if abs(taken_us - why.duration_us) <= 1e-6 * max(taken_us, 1e-3):
            return why
        formula = "as long as alone, and what it loses to what runs beside it on the device"
        terms = {"alone_us": why.duration_us, "lost_us": taken_us - why.duration_us}
        return Reason("beside others", formula, taken_us, terms, parts=(why,))


def profile_reason(graph: ExecutionGraph, node: int, profile: Profile, costs: HostCosts) -> Reason:
    """Why `profile` gives a host node its duration. Raises `ModelError` for an unknown type."""
    kind, op = overhead_of(graph, node), graph.labels[node]
    assert kind is not None
    thread = graph.resources[graph.nodes_.resource[node]].split("/", 1)[1]
    filed_under = f"any {kind}"
    if (kind, op, thread) in profile.rows:
        filed_under = f"{kind} of {op} on {thread}"
    elif (kind, None, thread) in profile.rows:
        filed_under = f"{kind} on {thread}"
    statistic, origin = profile.statistic(kind, op, thread), profile.provenance
    taken_us = float(getattr(statistic, costs.statistic))
    terms: Terms = {
        "overhead": f"{kind}, {DESCRIPTIONS[kind]}",
        "profile": costs.name,
        "filed_under": filed_under,
        "samples": statistic.count,
        "statistic": costs.statistic,
        costs.statistic: taken_us,
        "p10_us": statistic.p10_us,
        "p90_us": statistic.p90_us,
        "host_ratio": costs.ratio,
    }
    terms |= {name: ", ".join(getattr(origin, name)) or None for name in _ORIGIN}
    formula = f"{costs.statistic} of the profile's samples x host_ratio"
    if costs.recorded_on is not None:
        formula += f" ({HOST_SPEED} of the profile's host over the target's)"
    return Reason("host overheads", formula, taken_us * costs.ratio, terms, host_figures(costs))


_ORIGIN = ("traces", "devices", "hosts")


def host_figures(costs: HostCosts) -> tuple[FigureRead, ...]:
    """What was read of the profiles' hosts and of the target's."""
    hosts = [host for host in (costs.recorded_on, costs.host) if host is not None]
    return tuple(dict.fromkeys(figure_read(each, "host", HOST_SPEED) for each in hosts))


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
        if self.overheads is not None and overhead_of(self.graph, node):
            name, profile = self.overheads
            costs = HostCosts(profile, 1.0, "", name=name)
            source = profile_reason(self.graph, node, profile, costs)
        else:
            source = self._measured(node)
        source = source if self.moved is None else self._moved(node, source, self.moved)
        taken_us = float(self.duration_us[node])
        applied = [edit for edit in self.edits if edit.matches(self.graph)[node]]
        if not applied and abs(taken_us - source.duration_us) <= TOLERANCE_US:
            return source
        terms: Terms = {"before_us": source.duration_us}
        terms |= {f"{edit.text} factor": edit.factor for edit in applied}
        formula = "what it took x the factors of the what-ifs"
        factor = float(np.prod([edit.factor for edit in applied]))
        beside_us = taken_us - factor * source.duration_us
        if abs(beside_us) > TOLERANCE_US:
            terms["beside_others_us"] = beside_us
            formula += ", what a codec makes of it, and what it loses to others beside it"
        return Reason("what-if", formula, taken_us, terms, parts=(source,))

    def _measured(self, node: int) -> Reason:
        """The event behind a node, as the file has it."""
        graph, nodes = self.graph, self.graph.nodes_
        taken_us, row = float(nodes.duration_us[node]), int(nodes.row[node])
        if nodes.kind[node] == NodeKind.MARK:
            return _boundary(taken_us)
        rank = next((each for each in self.trace.ranks if each.rank == nodes.rank[node]), None)
        if rank is None or row == NONE:
            return Reason("measured wait", "what no event or dependency explains", taken_us)
        what, formula = "measured event", "the event's duration"
        if graph.arrivals is not None and node in graph.arrivals:
            what = "measured collective"
            formula = (
                "where ranks meet: of the ranks' durations the shortest is the transfer; the "
                "arrival takes none of it, and waiting is not stored"
            )
        elif abs(float(rank.duration_us[row]) - taken_us) > TOLERANCE_US:
            what = "measured stretch"
            formula = (
                "a stretch of its thread between events, operators and steps, waiting excluded; "
                "the event is the one that it lies in, or leads to"
            )
        terms: Terms = {
            "file": rank.where.rsplit("/", 1)[-1],
            "event": int(rank.file_index[row]),
            "name": rank.text(row),
            "start_us": float(rank.start_us[row]),
            "event_us": float(rank.duration_us[row]),
        }
        names = ("correlation", "stream", "thread", "size_bytes")
        numbers = {name: int(getattr(rank, name)[row]) for name in names}
        terms |= {name: value for name, value in numbers.items() if value != NONE}
        texts = {n: rank.strings[int(getattr(rank, n)[row])] for n in ("grid", "input_shapes")}
        terms |= {name: text for name, text in texts.items() if text}
        return Reason(what, formula, taken_us, terms)

    def _moved(self, node: int, was: Reason, moved: TransferredDurations) -> Reason:
        """By the hosts' speed, or by the ratio of its op's models, of kernels of its name, or of
        the rooflines of its class."""
        machines, terms = (moved.source, moved.target), Terms(measured_us=was.duration_us)
        if self.graph.nodes_.scope[node] in (Scope.HOST, Scope.ALLOCATOR):
            here, there = (each.node.host for each in machines)
            terms["host_ratio"] = ratio = host_ratio(here, there)
            formula = (
                f"measured time x host_ratio ({HOST_SPEED} of {here.name} over {there.name}'s)"
            )
            figures = tuple(figure_read(each, "host", HOST_SPEED) for each in (here, there))
            return Reason("host speed", formula, was.duration_us * ratio, terms, figures, (was,))
        rows = self.graph.device_span()[1]
        at = np.flatnonzero(rows == node)
        if not len(at):
            return was
        place, figures, parts = int(at[0]), tuple[FigureRead, ...](), [was]
        terms["ratio"] = ratio = float(moved.ratio[place])
        if not np.isnan(moved.by_op[place]):
            chosen, before, after = moved.compared[place]
            name = after.graph.ops[chosen.op].name
            factor = float(np.exp(before.unexplained_log(chosen)))
            terms |= {"op": name, "unexplained_factor": factor, "carried_frac": moved.carried_frac}
            for machine, pieces in zip(machines, (before.pieces, after), strict=True):
                placed, counted = place_collectives(pieces.rows, machine), pieces.counted(chosen)
                own = tuple(reason_of_row(placed, machine, row) for row in counted.tolist())
                taken_us = sum(each.duration_us for each in own)
                what = f"{name} on {machine.name}"
                parts.append(Reason(what, "sum of its pieces", taken_us, parts=own))
            what, formula = (
                "ratio of models",
                "measured time x what the op's pieces take on the target over the source x "
                "unexplained_factor ^ (carried_frac - 1)",
            )
        elif not np.isnan(moved.by_name[place]):
            key = kernel_keys(self.trace, self.graph, rows)[:, :2]
            alike = (key == key[place]).all(axis=1) & ~np.isnan(moved.by_op)
            terms["kernels_of_the_name"] = int(alike.sum())
            what, formula = (
                "ratio of namesakes",
                "measured time x the mean ratio, by time, of kernels of its name that have one",
            )
        else:
            label = self.graph.labels[node]
            (family,), (dtype,) = families_of_kernels([label]), dtypes_of_kernels([label])
            terms |= {"family": family, "dtype": dtype, "class": CLASS_OF_FAMILY[family]}
            figures = tuple(read for each in machines for read in figures_used(each, ("device",)))
            what, formula = (
                "ratio of rooflines",
                "floor of the target + (measured - floor of the source) x rate of the source over "
                "the target's, of the class that the kernel's name tells",
            )
        return Reason(what, formula, was.duration_us * ratio, terms, figures, tuple(parts))
