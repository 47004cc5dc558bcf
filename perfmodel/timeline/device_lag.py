"""Devices, and collectives, that fall behind the host: by how much, and what decides such a step.

Of a step whose device lags, the host's marks say how fast work was queued. Steps that follow one
another take as long as the device, so the path to the step's end is walked from what the deciding
stream ran then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats, Ints, median
from perfmodel.graph.recorded_steps import earlier_work, step_of_nodes
from perfmodel.timeline.critical_path import PathWalker, TimelinePath, critical_path
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steps import ranks_of
from perfmodel.trace.columns import NONE
from perfmodel.units import human_us

LAG_FRAC = 0.005
"""assumed: a device that falls less than this share of a step behind its host keeps up."""
EARLIER_FRAC = 0.05
"""assumed: a sole step says so where more than this share of its device work was launched before
the recording."""


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

    @classmethod
    def of(cls, timeline: Timeline, steps: Ints) -> DeviceLags:
        graph = timeline.graph
        periods = Periods.of(graph, steps)
        step_us = timeline.step_us.reshape(len(ranks_of(graph)), -1)[:, steps]
        taken_us = timeline.end_us - timeline.start_us
        return cls(timeline, periods, taken_us, step_us, periods.step_us(taken_us))

    def path(self, mark: int, walker: PathWalker) -> TimelinePath:
        """What decided when the step of a row of the marks ended, early to late; of a step that the
        device ends later than the host, what decided where the device was then. Its pieces sum to
        the step."""
        marks = self.timeline.graph.marks
        stream = self._deciding_stream.get(mark)
        if stream is None:
            return critical_path(self.timeline, mark, walker)
        begun, over = self.timeline.end_us[[marks.start[mark], marks.end[mark]]]
        work, latest_us = self._work[stream]
        first = int(np.searchsorted(latest_us, over, side="right"))
        if first == len(work):
            return critical_path(self.timeline, mark, walker)
        node = int(work[first])
        reached = max(float(self.timeline.start_us[node]), float(over))
        walked = walker.walk(node, reached, float(begun)).plain
        cut = [(n, e, c, b, min(o, float(over))) for n, e, c, b, o in walked if b < over]
        return TimelinePath(cut[::-1])

    def cycle(self, rank: int, index: int) -> TimelinePath:
        """What decides the period of a rank's step."""
        return self.periods.of_step[rank, index].path(self.timeline.graph, self.taken_us)

    @cached_property
    def _deciding_stream(self) -> dict[int, int]:
        """By row of the marks, the resource of the device that takes most of the cycle; none of
        steps in which the device keeps up."""
        graph, marks = self.timeline.graph, self.timeline.graph.marks
        place = {index: at for at, index in enumerate(self.periods.steps.tolist())}
        rows = {rank: row for row, rank in enumerate(ranks_of(graph))}
        seen = dict.fromkeys(rows, 0)
        result = {}
        for mark, rank in enumerate(marks.rank.tolist()):
            index, seen[rank] = seen[rank], seen[rank] + 1
            at = (rows[rank], place.get(index, NONE))
            step = self.periods.of_step.get((rank, index))
            if step is None or not device_lag_us(self.period_us[at], self.step_us[at]):
                continue
            by_stream: defaultdict[int, float] = defaultdict(float)
            for node, _, _, start_us, end_us in self.cycle(rank, index).plain:
                if graph.on_device[node] and graph.nodes_.rank[node] == rank:
                    by_stream[int(graph.nodes_.resource[node])] += end_us - start_us
            if by_stream:
                result[mark] = max(by_stream, key=lambda stream: by_stream[stream])
        return result

    @cached_property
    def _work(self) -> dict[int, tuple[Ints, Floats]]:
        """By resource that decides steps: its nodes in order of start, and the latest end of each
        and all before it."""
        resource = self.timeline.graph.nodes_.resource
        result = {}
        for stream in set(self._deciding_stream.values()):
            work = np.flatnonzero(resource == stream)
            work = work[np.argsort(self.timeline.start_us[work], kind="stable")]
            result[stream] = work, np.maximum.accumulate(self.timeline.end_us[work])
        return result

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
        earlier_us, total_us = self._earlier_us()
        if earlier_us > EARLIER_FRAC * total_us:
            yield (
                f"{human_us(earlier_us)} of the device's {human_us(total_us)} in the only step "
                "were launched before the recording: record several steps to know what one takes"
            )

    def _earlier_us(self) -> tuple[float, float]:
        """Device time of a sole step that was launched before the recording, and all of it."""
        graph = self.timeline.graph
        if len(graph.marks.name) > len(ranks_of(graph)):
            return 0.0, 0.0
        own = (step_of_nodes(graph) == 0) & graph.on_device
        earlier = earlier_work(graph)
        taken_us = self.taken_us
        return float(taken_us[earlier[own[earlier]]].sum()), float(taken_us[own].sum())
