"""Why nodes of a prediction from shapes take what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from perfmodel.graph.kinds import EdgeKind, NodeKind, Scope
from perfmodel.hardware import Cluster
from perfmodel.prediction.explain.host import overhead_of, profile_reason
from perfmodel.prediction.explain.models import beside, reason_of_row
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.scheduled import Scheduled
from perfmodel.trace.columns import NONE


@dataclass(frozen=True)
class Modelled:
    """Pieces timed by models on `machine`, the host by a profile."""

    found: Scheduled
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
            profile = self.costs.profile_of(int(nodes.rank[node]))
            return profile_reason(graph, node, profile, self.costs, self.costs.name)
        if nodes.kind[node] == NodeKind.HOST:
            return Reason("data loading", "samples per step over the loader's rate", taken_us)
        return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)

    def _of_piece(self, piece: int, taken_us: float) -> Reason:
        found, about = self.found, self.found.pieces[piece]
        why = reason_of_row(found.rows, self.machine, piece)
        if about.guessed:
            sizes = "guessed: the op's arguments do not tell"
            why = replace(why, terms={**why.terms, "sizes": sizes})
        if about.launches > 1:
            formula = "an equal share of what all launches of the piece take"
            share_us = why.duration_us / about.launches
            terms: Terms = {"launches": about.launches}
            why = Reason("one of several launches", formula, share_us, terms, (), (why,))
        return beside(why, taken_us)
