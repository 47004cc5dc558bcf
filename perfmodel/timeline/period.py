"""The period of recorded steps that follow one another: what a step takes, per batch.

Along a thread or a stream most operations wait for the one before them alone. A run of these takes
the sum of its lengths; only where several edges meet, at the head of the next run, a maximum is
taken: a recorded step has a quarter as many heads as nodes. The period is the largest ratio of
duration to distance over all cycles of heads (`timeline.steady`).

Of a step whose device, or whose collectives, lag behind the host, the host's marks say how fast
work was queued. Steps that follow one another take as long as the device, so the path to the step's
end is walked from what the deciding stream ran then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct, median
from perfmodel.base.units import human_us
from perfmodel.timeline.critical_path import PathWalker, Piece, TimelinePath, critical_path
from perfmodel.timeline.graph.kinds import CAUSE_OF_EDGE, EdgeKind
from perfmodel.timeline.graph.recorded_steps import RecordedStep, is_window, recorded_steps
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, ranks_of, schedule, step_bounds
from perfmodel.timeline.steady import CycleRatio, Relaxation, max_cycle_ratio
from perfmodel.trace.columns import NONE

_CAUSE_OF_EDGE = np.array([int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind])


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

    def path(self, graph: ExecutionGraph, duration_us: Floats) -> TimelinePath:
        """The cycle that decides, from 0 on, per step: its pieces sum to the period.

        Each node, less what it overlaps the next by, and the way from it, of no length too.
        """
        edges, node = self.step.edges, np.argsort(self.row)
        cycle = self.meeting[self.cycle(duration_us).cycle]
        first = self.row[edges.target[np.roll(cycle, 1)]]
        last = self.row[edges.source[cycle]]
        none = np.zeros(0, np.int64)
        runs = [np.arange(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        ways = [np.append(self.into[run[1:]], e) for run, e in zip(runs, cycle, strict=True)]
        way = np.concatenate([none, *ways])
        at, then = (
            self.step.nodes[node[np.concatenate([none, *runs])]],
            self.step.nodes[edges.target[way]],
        )
        lag_us, kind = edges.lag_us[way], edges.kind[way]
        own_us = duration_us[at] * (1 - edges.overlap_frac[way]) + np.minimum(lag_us, 0.0)
        taken_us = np.stack([own_us, np.maximum(lag_us, 0.0)], axis=1).reshape(-1)
        until = np.cumsum(taken_us / max(int(self.step.distance[cycle].sum()), 1))
        columns = (
            np.stack([at, then], axis=1).reshape(-1),
            np.stack([np.full(len(kind), NONE), kind], axis=1).reshape(-1),
            np.stack([graph.nodes_.cause[at], _CAUSE_OF_EDGE[kind]], axis=1).reshape(-1),
            np.append(0.0, until[:-1])[: len(until)],
            until,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return TimelinePath(Piece(*row) for row in rows)


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


LAG_FRAC = 0.005
"""assumed: a device that falls less than this share of a step behind its host keeps up."""


def device_lag_us(period_us: float, step_us: float) -> float:
    """By how much a period is longer than the step from mark to mark, as the device, or the
    collectives, fell behind the host."""
    lag_us = period_us - step_us
    return lag_us if lag_us > LAG_FRAC * step_us else 0.0


@dataclass(frozen=True)
class DeviceLags:
    """The steady steps of a timeline: how long they are from mark to mark, and their periods."""

    timeline: Timeline
    periods: Periods
    taken_us: Floats
    """Per node."""
    step_us: Floats
    """`[ranks, steps]`, from mark to mark."""
    period_us: Floats
    """`[ranks, steps]`."""
    _works: dict[int, tuple[Ints, Floats]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, timeline: Timeline, steps: Ints) -> DeviceLags:
        graph = timeline.graph
        periods = Periods.of(graph, steps)
        step_us = timeline.step_us.reshape(len(ranks_of(graph)), -1)[:, steps]
        taken_us = timeline.end_us - timeline.start_us
        return cls(timeline, periods, taken_us, step_us, periods.step_us(taken_us))

    def path(self, mark: int, walker: PathWalker) -> TimelinePath:
        """What decided when the step of a row of the marks ended, early to late; of a step that the
        device ends later than the host, what decided where the deciding stream was then. Its pieces
        sum to the step."""
        timeline, graph = self.timeline, self.timeline.graph
        if mark not in self._lagging:
            return critical_path(timeline, mark, walker)
        begun, over = step_bounds(timeline, mark)
        rank, by_stream = int(graph.marks.rank[mark]), defaultdict[int, float](float)
        for piece in self.cycle(rank, self._lagging[mark]):
            if graph.on_device[piece.node] and graph.nodes_.rank[piece.node] == rank:
                stream = int(graph.nodes_.resource[piece.node])
                by_stream[stream] += piece.end_us - piece.start_us
        if not by_stream:
            return critical_path(timeline, mark, walker)
        work, latest_us = self._work(max(by_stream, key=lambda stream: by_stream[stream]))
        first = int(np.searchsorted(latest_us, over, side="right"))
        if first == len(work):
            return critical_path(timeline, mark, walker)
        node = int(work[first])
        walked = walker.walk(node, max(float(timeline.start_us[node]), over), begun)
        cut = (p._replace(end_us=min(p.end_us, over)) for p in walked if p.start_us < over)
        return TimelinePath(reversed(list(cut)))

    def _work(self, stream: int) -> tuple[Ints, Floats]:
        """Nodes of a resource in order of start, and the latest end of each and all before it."""
        if stream not in self._works:
            work = np.flatnonzero(self.timeline.graph.nodes_.resource == stream)
            work = work[np.argsort(self.timeline.start_us[work], kind="stable")]
            self._works[stream] = work, np.maximum.accumulate(self.timeline.end_us[work])
        return self._works[stream]

    def cycle(self, rank: int, index: int) -> TimelinePath:
        """What decides the period of a rank's step."""
        return self.periods.of_step[rank, index].path(self.timeline.graph, self.taken_us)

    @cached_property
    def _lagging(self) -> dict[int, int]:
        """By row of the marks, the index of the steps in which the device falls behind."""
        if not self.periods.repeated:
            return {}
        rows = np.arange(len(self.timeline.graph.marks.name)).reshape(len(self.step_us), -1)
        lags = self.period_us - self.step_us > LAG_FRAC * self.step_us
        index = np.broadcast_to(self.periods.steps, lags.shape)[lags].tolist()
        return dict(zip(rows[:, self.periods.steps][lags].tolist(), index, strict=True))

    def cautions(self) -> Iterator[str]:
        """That the device lags, by how much, and what steps that follow one another take."""
        if not self.periods.repeated:
            return
        period_us, step_us = (max(map(median, us)) for us in (self.period_us, self.step_us))
        lag_us = device_lag_us(period_us, step_us)
        if lag_us:
            yield (
                f"the device falls {human_us(lag_us)} behind the host in each step: steps that "
                f"follow one another take {human_us(period_us)}, the host's {human_us(step_us)}"
            )
