"""Why nodes of a prediction from shapes take what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from perfmodel.cost.basis import coefficients_of, parts_of
from perfmodel.cost.coefficients import Coefficient
from perfmodel.cost.contract import Explanation
from perfmodel.cost.durations import Durations, durations_of, explanations_of
from perfmodel.cost.host import Profile
from perfmodel.cost.host.samples import DESCRIPTIONS
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster, Device, Host, Node, cluster
from perfmodel.hardware.reads import FigureRead, figure_read, figures_used
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.scheduled import OVERHEAD_OF_CAUSE, HostCosts, ScheduledSteps
from perfmodel.prediction.types import Result
from perfmodel.trace.columns import NONE
from perfmodel.units import BYTES_PER_GB, US_PER_S


@dataclass(frozen=True)
class ModelReason:
    """What rows of one family take, why, and the figures and coefficients that its models use."""

    durations: Durations
    why: list[Explanation]
    figures: tuple[FigureRead, ...]
    coefficients: tuple[Coefficient, ...]


def model_reason(rows: Rows, hardware: Device | Node | Cluster) -> ModelReason:
    """Why `rows`, all of one family, take what they take on `hardware`. Raises `ModelError`."""
    machine = cluster(hardware)
    family = OPS[rows.op[0]].family
    return ModelReason(
        durations_of(rows, machine),
        explanations_of(rows, machine),
        figures_used(machine, parts_of(family)),
        coefficients_of(family, machine.node.device.target),
    )


def reason_of_row(rows: Rows, hardware: Device | Node | Cluster, at: int = 0) -> Reason:
    """Why row `at` of `rows` takes what it takes on `hardware`, and which figures that uses.

    Raises `ModelError`.
    """
    one = rows.take(np.array([at], np.int64))
    reason = model_reason(one, hardware)
    durations, (why,) = reason.durations, reason.why
    duration_us = float(durations.duration_us[0])
    moved_bytes = why.read_bytes + why.written_bytes
    terms: Terms = {
        "op": f"{one.op[0]} {one.dtype[0]} {one.direction[0]}",
        "dims": one.dims_text(),
        "model": durations.model[0],
        "source": durations.source[0],
        "bound_by": why.bound_by,
        "low_us": float(durations.low_us[0]),
        "high_us": float(durations.high_us[0]),
        "flop": why.flop,
        "read_bytes": why.read_bytes,
        "written_bytes": why.written_bytes,
        "moved_gb_per_s": moved_bytes / max(duration_us, 1e-9) * US_PER_S / BYTES_PER_GB,
        "utilisation_frac": why.utilisation_frac,
    }
    terms |= why.terms
    return Reason(
        "model", why.formula, duration_us, terms, reason.figures, coefficients=reason.coefficients
    )


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
        return explanations_of(one, self._machine_of(longest))[0].bound_by

    def _machine_of(self, piece: int) -> Cluster:
        machines, kind = self.found.machines(self.machine)
        return machines[int(kind[piece])]

    def reason(self, node: int) -> Reason:
        """By the node's model, profile or loader."""
        graph = self.found.timeline.graph
        nodes = graph.nodes_
        taken_us = float(nodes.duration_us[node])
        piece = int(self.found.built.piece[node])
        if piece != NONE:
            return self._of_piece(piece, taken_us)
        if nodes.row[node] != NONE:
            ratio = self.host_ratio.get(int(nodes.rank[node]), 1.0)
            ratio = ratio if nodes.scope[node] == Scope.HOST else 1.0
            formula = "measured in the trace x host_ratio (its host's speed over the target's)"
            terms: Terms = {"measured_us": taken_us / ratio, "host_ratio": ratio}
            return Reason("measured in the trace", formula, taken_us, terms)
        if overhead_of(graph, node) and nodes.scope[node] == Scope.HOST and self.costs is not None:
            costs = self.costs.seen_by(int(nodes.rank[node]))
            profile = costs.profile_of(int(nodes.rank[node]))
            return profile_reason(graph, node, profile, costs, costs.name)
        if nodes.kind[node] == NodeKind.HOST:
            return Reason("data loading", "samples per step over the loader's rate", taken_us)
        return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)

    def _of_piece(self, piece: int, taken_us: float) -> Reason:
        about = self.found.pieces[piece]
        why = reason_of_row(self.found.rows, self._machine_of(piece), piece)
        if about.guessed:
            sizes = "guessed: the op's arguments do not tell"
            why = replace(why, terms={**why.terms, "sizes": sizes})
        if about.launches > 1:
            formula = "an equal share of what all launches of the piece take"
            share_us = why.duration_us / about.launches
            terms: Terms = {"launches": about.launches}
            why = Reason("one of several launches", formula, share_us, terms, (), (why,))
        if abs(taken_us - why.duration_us) <= 1e-6 * max(taken_us, 1e-3):
            return why
        formula = "as long as alone, and what it loses to what runs beside it on the device"
        terms = {"alone_us": why.duration_us, "lost_us": taken_us - why.duration_us}
        return Reason("beside others", formula, taken_us, terms, (), (why,))


HOST_SPEED = "single_thread_ratio"


def overhead_of(graph: ExecutionGraph, node: int) -> str | None:
    """The overhead type of a host node, `T1` to `T5` and the like; None for others."""
    return OVERHEAD_OF_CAUSE.get(Cause(int(graph.nodes_.cause[node])))


def profile_reason(
    graph: ExecutionGraph, node: int, profile: Profile, costs: HostCosts, name: str
) -> Reason:
    """Why `profile` gives a host node its duration. Raises `ModelError` for an unknown type."""
    kind = overhead_of(graph, node)
    assert kind is not None
    thread = graph.resources[graph.nodes_.resource[node]].split("/", 1)[1]
    op = graph.labels[node]
    filed_under = f"any {kind}"
    if (kind, op, thread) in profile.rows:
        filed_under = f"{kind} of {op} on {thread}"
    elif (kind, None, thread) in profile.rows:
        filed_under = f"{kind} on {thread}"
    statistic, origin = profile.statistic(kind, op, thread), profile.provenance
    taken_us = float(getattr(statistic, costs.statistic))
    terms: Terms = {
        "overhead": f"{kind}, {DESCRIPTIONS[kind]}",
        "profile": name,
        "filed_under": filed_under,
        "samples": statistic.count,
        "statistic": costs.statistic,
        costs.statistic: taken_us,
        "p10_us": statistic.p10_us,
        "p90_us": statistic.p90_us,
        "host_ratio": costs.ratio,
    }
    for name in ("traces", "devices", "hosts"):
        terms[name] = ", ".join(getattr(origin, name)) or None
    formula = f"{costs.statistic} of the profile's samples x host_ratio"
    if costs.recorded_on is not None:
        formula += f" ({HOST_SPEED} of the profile's host over the target's)"
    return Reason("host overheads", formula, taken_us * costs.ratio, terms, host_figures(costs))


def host_figures(costs: HostCosts) -> tuple[FigureRead, ...]:
    """What was read of the profiles' hosts and of the target's."""
    every = (costs, *(each for _, each in costs.others))
    hosts = (host for each in every for host in (each.recorded_on, each.host))
    reads = (figure_read(each, "host", HOST_SPEED) for each in hosts if each is not None)
    return tuple(dict.fromkeys(reads))


def speed_reason(measured: Reason, ratio: float, source: Host, target: Host) -> Reason:
    """Measured host time on another host."""
    formula = f"measured time x host_ratio ({HOST_SPEED} of {source.name} over {target.name}'s)"
    figures = tuple(figure_read(each, "host", HOST_SPEED) for each in (source, target))
    taken_us = measured.duration_us * ratio
    terms: Terms = {"measured_us": measured.duration_us, "host_ratio": ratio}
    return Reason("host speed", formula, taken_us, terms, figures, (measured,))


def with_reads(result: Result, machine: Cluster, costs: HostCosts | None) -> Result:
    """`result`, predicted on `machine`, with the figures of the parts that it uses."""
    explainer = result.explainer
    families = explainer.found.families if isinstance(explainer, ModelExplainer) else ()
    parts = {"device"}.union(*map(parts_of, families))
    of_hosts = () if costs is None else host_figures(costs)
    reads = dict.fromkeys((*figures_used(machine, parts), *of_hosts))
    return replace(result, reads=tuple(reads))
