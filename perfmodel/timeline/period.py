"""The period of recorded steps that follow one another: what a step takes, per batch.

Along a thread or a stream most operations wait for the one before them alone. A run of these takes
the sum of its lengths; only where several edges meet, at the head of the next run, a maximum is
taken: a recorded step has a quarter as many heads as nodes. The period is the largest ratio of
duration to distance over all cycles of heads (`timeline.steady`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import Floats, Ints, distinct
from perfmodel.graph.kinds import CAUSE_OF_EDGE, EdgeKind
from perfmodel.graph.recorded_steps import RecordedStep, is_window, recorded_steps
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.critical_path import TimelinePath
from perfmodel.timeline.schedule import schedule
from perfmodel.timeline.steady import CycleRatio, Relaxation, max_cycle_ratio
from perfmodel.trace.columns import NONE

_CAUSE_OF_EDGE = np.array([int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind])


class CyclePieces(NamedTuple):
    """The nodes of a cycle in order, and the edge from each to the next; per step, so that all
    lengths sum to the period. What a node overlaps the next by is taken off it."""

    node: Ints
    node_us: Floats
    kind: Ints
    """`EdgeKind`."""
    then: Ints
    """The node that the edge leads to."""
    way_us: Floats


@dataclass(frozen=True)
class RepeatedStep:
    """A recorded step as runs of nodes, and the edges that lead to their heads."""

    step: RecordedStep
    row: Ints
    """Per node of the step, its place in the order of runs."""
    into: Ints
    """Per place: the edge from the place before, or -1 at the head of a run."""
    run: Ints
    """Per place: which run it belongs to."""
    meeting: Ints
    """The edges between runs."""
    ways: Relaxation

    @classmethod
    def of(cls, step: RecordedStep, resource: Ints) -> RepeatedStep:
        """`resource`: per node of the graph, what it is bound to."""
        count, edges = len(step.nodes), step.edges
        own = resource[step.nodes]
        node = np.argsort(own, kind="stable")
        row = np.empty(count, np.int64)
        row[node] = np.arange(count)
        alone = np.bincount(edges.target, minlength=count) == 1
        goes_on = (row[edges.source] + 1 == row[edges.target]) & alone[edges.target]
        goes_on &= (own[edges.source] == own[edges.target]) & (step.distance == 0)
        into = np.full(count, NONE, np.int64)
        into[row[edges.target[goes_on]]] = np.flatnonzero(goes_on)
        run = np.cumsum(into == NONE) - 1
        meeting = np.flatnonzero(~goes_on)
        heads = np.argsort(node[into == NONE], kind="stable")
        source, target = (run[row[end[meeting]]] for end in (edges.source, edges.target))
        return cls(step, row, into, run, meeting, Relaxation(heads, source, target))

    def cycle(self, duration_us: Floats, guess: Ints | None = None) -> CycleRatio:
        """The cycle that decides, with `duration_us` per node of the graph; its edges, and those of
        a cycle to begin with, are places in `meeting`."""
        edges = self.step.edges
        own_us = duration_us[self.step.nodes]
        way_us = edges.lag_us - edges.overlap_frac * own_us[edges.source]
        taken = np.empty(len(own_us))
        taken[self.row] = own_us
        goes_on = np.flatnonzero(self.into != NONE)
        taken[goes_on] += way_us[self.into[goes_on]]
        until = np.cumsum(taken)
        until -= (until - taken)[self.into == NONE][self.run]
        weight = until[self.row[edges.source[self.meeting]]] + way_us[self.meeting]
        return max_cycle_ratio(self.ways, weight, self.step.distance[self.meeting], guess)

    def on_cycle(self, duration_us: Floats) -> CyclePieces:
        """What the cycle that decides is made of."""
        edges, node = self.step.edges, np.argsort(self.row)
        cycle = self.meeting[self.cycle(duration_us).cycle]
        first = self.row[edges.target[np.roll(cycle, 1)]]
        last = self.row[edges.source[cycle]]
        none = np.zeros(0, np.int64)
        runs = [np.arange(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        ways = [np.append(self.into[run[1:]], e) for run, e in zip(runs, cycle, strict=True)]
        at, way = node[np.concatenate([none, *runs])], np.concatenate([none, *ways])
        rows, lag_us = self.step.nodes[at], edges.lag_us[way]
        own_us = duration_us[rows] * (1 - edges.overlap_frac[way]) + np.minimum(lag_us, 0.0)
        steps = max(int(self.step.distance[cycle].sum()), 1)
        kind, then = edges.kind[way], self.step.nodes[edges.target[way]]
        return CyclePieces(rows, own_us / steps, kind, then, np.maximum(lag_us, 0.0) / steps)

    def path(self, graph: ExecutionGraph, duration_us: Floats) -> TimelinePath:
        """The cycle that decides, beginning at 0; its pieces sum to the period."""
        found = self.on_cycle(duration_us)
        edge = np.stack([np.full(len(found.kind), NONE), found.kind], axis=1).reshape(-1)
        node = np.stack([found.node, found.then], axis=1).reshape(-1)
        cause = np.where(edge == NONE, graph.nodes_.cause[node], _CAUSE_OF_EDGE[edge])
        until = np.cumsum(np.stack([found.node_us, found.way_us], axis=1).reshape(-1))
        since = np.append(0.0, until[:-1])
        kept = until > since
        columns = (column[kept].tolist() for column in (node, edge, cause, since, until))
        return TimelinePath(list(zip(*columns, strict=True)))


@dataclass(frozen=True)
class Periods:
    """Chosen steps of a graph as ones that go on for ever, whatever their nodes take."""

    graph: ExecutionGraph
    steps: Ints
    """Which of each rank's."""
    repeated: tuple[RepeatedStep, ...]
    """None of a graph whose only step is the window of its events."""

    @classmethod
    def of(cls, graph: ExecutionGraph, steps: Ints) -> Periods:
        resource = graph.nodes_.resource
        found = (RepeatedStep.of(step, resource) for step in recorded_steps(graph, steps))
        return cls(graph, steps, tuple(found))

    def only(self, steps: Ints) -> Periods:
        """Those of some of the steps."""
        chosen = set(steps.tolist())
        kept = tuple(each for each in self.repeated if each.step.index in chosen)
        return replace(self, steps=steps, repeated=kept)

    def step_us(self, duration_us: Floats) -> Floats:
        """What each step takes, `[ranks, steps]`: its period; of a window, what its schedule
        takes."""
        graph = self.graph
        if is_window(graph):
            return schedule(graph, duration_us).step_us.reshape(-1, 1)
        return self.by_rank([each.cycle(duration_us).ratio for each in self.repeated])

    def by_rank(self, values: Sequence[float] | Sequence[Floats]) -> Floats:
        """`[ranks, steps, ...]` from one value for each of `repeated`."""
        ranks = {rank: at for at, rank in enumerate(distinct(self.graph.marks.rank).tolist())}
        table = np.empty((len(ranks), len(self.steps), *np.shape(values)[1:]))
        place = {step: at for at, step in enumerate(self.steps.tolist())}
        for each, value in zip(self.repeated, values, strict=True):
            table[[ranks[rank] for rank in each.step.ranks], place[each.step.index]] = value
        return table

    @cached_property
    def of_step(self) -> dict[tuple[int, int], RepeatedStep]:
        """By rank and index, the step that it goes through as its `index`-th."""
        return {(rank, each.step.index): each for each in self.repeated for rank in each.step.ranks}
