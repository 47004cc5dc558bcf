"""The steady state of a step that repeats: cycles, its period, one periodic schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks, topological
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE

TIGHT_FACTOR = 100.0
"""Values are sums of many lengths: so many times the rounding of one sum they may be off."""


def rounding_error(way: Floats) -> float:
    """What sums of `way` may be off by."""
    return 1e-12 * float(np.abs(way).sum()) + 1e-9


ROUNDING_PER_EDGE = 4 * float(np.finfo(np.float64).eps)
"""Edge by edge, a sum along a cycle may be so much of itself above what the cycle takes: equal
pieces all round the same way, and one of 280,000 edges then looks longer than nothing for ever."""


class CycleRatio(NamedTuple):
    """The largest ratio of weight to distance over all cycles; 0 without a cycle."""

    ratio: float
    cycle: Ints
    """The edges of one that has it, in order."""


class Relaxation:
    """Longest ways through a graph whose edges of distance 0 close no cycle, pass by pass.

    `order` lists the nodes so that every edge of distance 0 goes forward.
    """

    def __init__(self, order: Ints, source: Ints, target: Ints) -> None:
        self.order = order.tolist()
        self.by_target = np.argsort(target, kind="stable")
        bounds = np.searchsorted(target[self.by_target], np.arange(len(order) + 1))
        first, behind = bounds[order], bounds[order + 1]
        entered = first < behind
        columns = (column[entered].tolist() for column in (order, first, behind))
        self.visits = list(zip(*columns, strict=True))
        """Nodes that edges lead to, and from which to before which edge by target these are."""
        self.edges, self.all_sources = self.by_target.tolist(), source.tolist()
        self.source = source[self.by_target].tolist()

    def relax(self, value: list[float], way: list[float], best: list[int], least: float) -> bool:
        """Raise `value` per node to what its edges ask for; whether any rose by more than `least`.

        `way` holds a length per edge by target; `best` gets the edge that decided.
        """
        source, edges = self.source, self.edges
        rose = False
        for node, first, behind in self.visits:
            now = value[node] + least
            chosen = NONE
            for at in range(first, behind):
                reached = value[source[at]] + way[at]
                if reached > now:
                    now, chosen = reached, at
            if chosen != NONE:
                value[node], best[node], rose = now, edges[chosen], True
        return rose

    def cycle(self, best: list[int]) -> list[int]:
        """Edges of a cycle among the deciding ones, in order; none where there is none."""
        seen = [0] * len(best)
        for number, first in enumerate(self.order, 1):
            node = first
            while not seen[node]:
                seen[node] = number
                if best[node] == NONE:
                    break
                node = self.all_sources[best[node]]
            else:
                if seen[node] == number:
                    cycle, at = [best[node]], self.all_sources[best[node]]
                    while at != node:
                        cycle.append(best[at])
                        at = self.all_sources[best[at]]
                    return cycle[::-1]
        return []


def max_cycle_ratio(
    ways: Relaxation, weight: Floats, distance: Ints, guess: Ints | None = None
) -> CycleRatio:
    """The cycle with the most weight per distance, by rising ratio, from that of the cycle `guess`.

    As long as the longest ways at a ratio find a cycle that is longer than nothing, its own ratio
    is the next; each is above the one before, so this ends with the largest.
    Source: Lawler, Combinatorial Optimization (1976), minimum cost-to-time ratio; the rise from
    cycle to cycle as in Dasdan, ACM TODAES 9(4), 2004.
    """
    count, least = len(ways.order), rounding_error(weight)
    ratio, cycle = 0.0, np.zeros(0, np.int64)  # no cycle asks for less than nothing
    if guess is not None and len(guess):
        cycle = guess
        ratio = max(float(weight[cycle].sum() / distance[cycle].sum()), 0.0)
    value = [0.0] * count
    while True:
        way = (weight - ratio * distance)[ways.by_target].tolist()
        best = [NONE] * count
        result: list[int] = []
        while not result and ways.relax(value, way, best, least):
            result = ways.cycle(best)
        if not result:
            return CycleRatio(ratio, cycle)
        cycle = np.array(result, np.int64)
        above = float(weight[cycle].sum() / distance[cycle].sum())
        ratio = above if above > ratio else ratio * (1 + ROUNDING_PER_EDGE * len(cycle))


def earliest_values(ways: Relaxation, way: Floats, at_least: Floats) -> Floats:
    """The smallest value per node, `at_least` and that every edge, of length `way`, allows.

    No cycle may be longer than nothing.
    """
    value, best = at_least.tolist(), [NONE] * len(at_least)
    lengths, least = way[ways.by_target].tolist(), rounding_error(way)
    for _ in range(len(value)):
        if not ways.relax(value, lengths, best, least):
            break
    return np.array(value)


def critical_nodes(source: Ints, target: Ints, way: Floats, value: Floats) -> Mask:
    """Which nodes a cycle of length 0 fixes, given values that all edges allow: those on one, and
    all that such a way leads to from there."""
    tight = value[source] + way >= value[target] - TIGHT_FACTOR * rounding_error(way)
    fixed = np.ones(len(value), np.bool_)
    fixed[topological(len(value), source[tight], target[tight])] = False
    return fixed


def edges_of_steps(graph: ExecutionGraph) -> tuple[Edges, Ints]:
    """All edges, those that are carried last, and how many steps later the target of each is."""
    within = np.zeros(len(graph.edges_), np.int64)
    if graph.carried is None:
        return graph.edges_, within
    every = graph.edges_.and_(graph.carried.edges)
    return every, np.concatenate([within, graph.carried.distance])


def unroll(graph: ExecutionGraph, steps: int) -> ExecutionGraph:
    """`graph` repeated `steps` times; the copies follow one another, each with all its nodes.

    A step after the first begins where the one before ended. What would come from before the first
    is left out. Marks are rank by rank, in order of steps.
    """
    count, marks = len(graph), graph.marks
    edges, distance = edges_of_steps(graph)
    step = np.repeat(np.arange(steps), len(edges))
    every = np.tile(np.arange(len(edges)), steps)
    kept = step + distance[every] < steps
    step, every = step[kept], every[kept]
    repeated = edges.where(every)
    repeated = replace(
        repeated,
        source=repeated.source + step * count,
        target=repeated.target + (step + distance[every]) * count,
    )
    nodes = Nodes(**{e.name: np.tile(getattr(graph.nodes_, e.name), steps) for e in fields(Nodes)})
    span_us = float(np.ptp(graph.nodes_.start_us)) + 1.0 if count else 1.0
    shift_us = np.repeat(np.arange(steps) * span_us, count)
    ends = marks.end[:, None] + np.arange(steps) * count
    begins = np.concatenate([marks.start[:, None], ends[:, :-1]], axis=1)
    names = tuple(name for name in marks.name for _ in range(steps))
    shifts = [k * count for k in range(steps)]
    groups = graph.process_groups.items()
    arrivals = graph.arrivals
    return replace(
        graph,
        nodes_=replace(nodes, start_us=nodes.start_us + shift_us),
        edges_=repeated,
        marks=StepMarks(np.repeat(marks.rank, steps), names, begins.reshape(-1), ends.reshape(-1)),
        labels=graph.labels * steps,
        annotations=graph.annotations * steps,
        process_groups={node + shift: name for shift in shifts for node, name in groups},
        arrivals=None if arrivals is None else np.concatenate([arrivals + k for k in shifts]),
        carried=None,
    )


STEPS_AHEAD = 2
"""Assumed: how many steps early what nothing holds back runs (a host before its device, loaders);
data loaders keep two batches per worker. It moves no period."""


@dataclass(frozen=True)
class SteadyState:
    """Repetition `i` of `step` does what `start_us` says `i` times `period_us` later."""

    step: Recurrence
    period_us: float
    start_us: Floats
    duration_us: Floats
    cycle: Ints
    """Edges of the cycle that decides, in order: rows of the graph's edges, those that it carries
    from step to step behind the others."""

    def by_resource(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """Microseconds per step of the deciding cycle by resource, largest first; they sum to the
        period, and ways between nodes count for the one that they lead to. `names`: of each node's,
        the graph's without."""
        graph, result = self.step.graph, defaultdict[str, float](float)
        cycle = self.step.edges.where(self.cycle)
        steps = int(self.step.distance[self.cycle].sum())
        taken_us = self.duration_us[cycle.source] * (1 - cycle.overlap_frac)
        for ends, us in ((cycle.source, taken_us), (cycle.target, cycle.lag_us)):
            for node, each_us in zip(ends.tolist(), us.tolist(), strict=True):
                name = names[node] if names else graph.resources[int(graph.nodes_.resource[node])]
                result[name] += each_us / steps
        return dict(sorted(result.items(), key=lambda item: -item[1]))

    def window(self) -> Timeline:
        """One period of every rank, amid the steps around it: its mark begins where the step before
        ended. Of a rank that the deciding cycle runs through, it ends with what is last on it, so
        that the path back from there is the cycle: a device that lags behind its host decides
        nothing, though each step ends on it."""
        graph = self.step.graph
        ends = self.start_us + self.duration_us
        last = float(ends[graph.marks.end].max())
        device = graph.device_span()[0]
        first = float(self.start_us[device].min()) if len(device) else last
        later = int(np.ceil((last - first) / self.period_us)) if self.period_us else 0
        before = STEPS_AHEAD
        steps = before + 1 + min(later, STEPS_AHEAD + 1)
        many = self.step.unrolled(steps)
        shift = np.repeat(np.arange(steps) * self.period_us, len(graph))
        start = np.tile(self.start_us, steps) + shift
        end = start + np.tile(self.duration_us, steps)
        marks = many.marks
        rows = np.arange(before, len(marks.name), steps)
        behind = len(graph) * before
        # Of a rank that the deciding cycle runs through, its node there that ends last; none where
        # the step's own end is one.
        cycle = distinct(self.step.edges.source[self.cycle])
        deciding = np.full(len(graph.marks.rank), NONE)
        for row, (rank, own_end) in enumerate(zip(graph.marks.rank, graph.marks.end, strict=True)):
            through = cycle[graph.nodes_.rank[cycle] == rank]
            if len(through) and own_end not in through:
                deciding[row] = through[ends[through].argmax()]
        own = deciding != NONE
        one = replace(
            marks,
            rank=marks.rank[rows],
            name=tuple(marks.name[row] for row in rows),
            start=np.where(own, deciding + behind - len(graph), marks.start[rows]),
            end=np.where(own, deciding + behind, marks.end[rows]),
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
    _unrolled: dict[int, ExecutionGraph] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Recurrence:
        edges, distance = edges_of_steps(graph)
        return cls(graph, edges, distance, Relaxation(graph.order, edges.source, edges.target))

    def unrolled(self, steps: int) -> ExecutionGraph:
        if steps not in self._unrolled:
            self._unrolled[steps] = unroll(self.graph, steps)
        return self._unrolled[steps]

    def weight_us(self, duration_us: Floats) -> Floats:
        """Per edge: from the start of its source to the start that it allows its target."""
        edges = self.edges
        return duration_us[edges.source] * (1 - edges.overlap_frac) + edges.lag_us

    def period_us(self, duration_us: Floats) -> float:
        """The largest ratio of duration to distance over all cycles; never shorter where nodes
        take longer."""
        return max_cycle_ratio(self.ways, self.weight_us(duration_us), self.distance).ratio

    def steady_state(self, duration_us: Floats) -> SteadyState:
        """How the step goes on when it is repeated for ever, its nodes of `duration_us` each.

        The period is the largest ratio of duration to distance over all cycles of dependencies.
        What a cycle that decides fixes starts when it does in steps that all resources begin
        together; all else as early as its edges allow, at most `STEPS_AHEAD` periods earlier.
        """
        graph, edges, weight = self.graph, self.edges, self.weight_us(duration_us)
        result = max_cycle_ratio(self.ways, weight, self.distance)
        way = weight - result.ratio * self.distance
        together = earliest_values(self.ways, way, schedule(graph, duration_us).start_us)
        decides = critical_nodes(edges.source, edges.target, way, together)
        ahead = np.where(decides, 0.0, STEPS_AHEAD * result.ratio)
        start_us = earliest_values(self.ways, way, together - ahead)
        return SteadyState(self, result.ratio, start_us, duration_us, result.cycle)
