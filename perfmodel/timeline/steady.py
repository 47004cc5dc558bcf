"""The steady state of a step that repeats: its period, one periodic schedule, what decides it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.graph.types import Edges, ExecutionGraph
from perfmodel.timeline.cycles import Relaxation, critical, earliest, max_cycle_ratio
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.timeline.unrolled import edges_of_steps, unrolled
from perfmodel.trace.columns import Floats, Ints

STEPS_AHEAD = 2
"""Assumed: how many steps early what nothing holds back runs (a host before its device, loaders);
data loaders keep two batches per worker. It moves no period."""


@dataclass(frozen=True)
class SteadyState:
    """Step `i` of `graph` repeats what `start_us` says `i` times `period_us` later."""

    graph: ExecutionGraph
    period_us: float
    start_us: Floats
    duration_us: Floats
    cycle: Ints
    """Edges of the cycle that decides, in order: rows of the graph's edges, those that it carries
    from step to step behind the others."""

    @cached_property
    def pieces(self) -> list[tuple[int, int, float]]:
        """(node, edge kind, microseconds) per edge of the cycle: what its source takes, then what
        the way to its target does, which may be negative; per step they sum to the period."""
        edges, distance = edges_of_steps(self.graph)
        steps = int(distance[self.cycle].sum())
        source = edges.source[self.cycle]
        taken = self.duration_us[source] * (1 - edges.overlap_frac[self.cycle])
        nodes = [(int(n), -1, float(us) / steps) for n, us in zip(source, taken, strict=True)]
        ways = [
            (int(edges.target[edge]), int(edges.kind[edge]), float(edges.lag_us[edge]) / steps)
            for edge in self.cycle
        ]
        return [piece for pair in zip(nodes, ways, strict=True) for piece in pair]

    def by_resource(self) -> dict[str, float]:
        """Microseconds per step of the deciding cycle by resource, largest first; ways between
        nodes count for the one that they lead to."""
        graph, found = self.graph, dict[str, float]()
        for node, _, taken_us in self.pieces:
            name = graph.resources[int(graph.nodes_.resource[node])]
            found[name] = found.get(name, 0.0) + taken_us
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def window(self) -> Timeline:
        """One period of every rank, amid the steps around it: its mark begins where the step before
        ended."""
        graph = self.graph
        ends = self.start_us + self.duration_us
        last = float(ends[graph.marks.end].max())
        device = graph.device_span()[0]
        first = float(self.start_us[device].min()) if len(device) else last
        later = int(np.ceil((last - first) / self.period_us)) if self.period_us else 0
        before = STEPS_AHEAD
        steps = before + 1 + min(later, STEPS_AHEAD + 1)
        many = unrolled(graph, steps)
        shift = np.repeat(np.arange(steps) * self.period_us, len(graph))
        start = np.tile(self.start_us, steps) + shift
        end = start + np.tile(self.duration_us, steps)
        marks = many.marks
        rows = np.arange(before, len(marks.name), steps)
        one = replace(
            marks,
            rank=marks.rank[rows],
            name=tuple(marks.name[row] for row in rows),
            start=marks.start[rows],
            end=marks.end[rows],
        )
        nodes = replace(many.nodes_, start_us=start, duration_us=end - start)
        return Timeline(replace(many, nodes_=nodes, marks=one), start, end)


@dataclass(frozen=True)
class Recurrence:
    """One step that carries edges to later ones: what it has in common whatever its nodes take."""

    graph: ExecutionGraph
    edges: Edges
    distance: Ints
    ways: Relaxation

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Recurrence:
        """That of `graph`."""
        edges, distance = edges_of_steps(graph)
        return cls(graph, edges, distance, Relaxation(graph.order, edges.source, edges.target))

    def weight_us(self, duration_us: Floats) -> Floats:
        """Per edge: from the start of its source to the start that it allows its target."""
        edges = self.edges
        return duration_us[edges.source] * (1 - edges.overlap_frac) + edges.lag_us

    def period_us(self, duration_us: Floats) -> float:
        """The largest ratio of duration to distance over all cycles; never shorter where nodes
        take longer."""
        return max_cycle_ratio(self.ways, self.weight_us(duration_us), self.distance).ratio

    def steady_state(self, duration_us: Floats) -> SteadyState:
        """How the step goes on when it is repeated for ever, its nodes of `duration_us` each."""
        graph, edges, weight = self.graph, self.edges, self.weight_us(duration_us)
        found = max_cycle_ratio(self.ways, weight, self.distance)
        way = weight - found.ratio * self.distance
        together = earliest(self.ways, way, schedule(graph, duration_us).start_us)
        decides = critical(edges.source, edges.target, way, together)
        ahead = np.where(decides, 0.0, STEPS_AHEAD * found.ratio)
        start_us = earliest(self.ways, way, together - ahead)
        return SteadyState(graph, found.ratio, start_us, duration_us, found.cycle)


def steady_state(graph: ExecutionGraph, duration_us: Floats | None = None) -> SteadyState:
    """How `graph`, one step that carries edges to later ones, goes on when it is repeated for ever.

    The period is the largest ratio of duration to distance over all cycles of dependencies. What
    lies on a cycle that decides starts when it does in steps that all resources begin together; all
    else as early as its edges allow, at most `STEPS_AHEAD` periods earlier.
    """
    duration = graph.nodes_.duration_us if duration_us is None else duration_us
    return Recurrence.of(graph).steady_state(duration)
