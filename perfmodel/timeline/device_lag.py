"""Devices, and collectives, that fall behind the host: by how much, and what decides such a step.

Of a step whose device lags, the host's marks say how fast work was queued. Steps that follow one
another take as long as the device, so the path to the step's end is walked from what the deciding
stream ran then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints, median
from perfmodel.graph.recorded_steps import earlier_work, step_of_nodes
from perfmodel.timeline.critical_path import PathWalker, TimelinePath, critical_path
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steps import ranks_of
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
        return cls(timeline, periods, step_us, periods.step_us(taken_us))

    def path(self, mark: int, walker: PathWalker) -> TimelinePath:
        """What decided when the step of a row of the marks ended, early to late; of a step that the
        device ends later than the host, what decided where the device was then. Its pieces sum to
        the step."""
        marks = self.timeline.graph.marks
        rank = int(marks.rank[mark])
        index = mark - int(np.flatnonzero(marks.rank == rank)[0])
        stream = self._deciding_stream(rank, index)
        if stream is None:
            return critical_path(self.timeline, mark, walker)
        begun, over = self.timeline.end_us[[marks.start[mark], marks.end[mark]]]
        work = np.flatnonzero(self.timeline.graph.nodes_.resource == stream)
        later = work[self.timeline.end_us[work] > over]
        if not len(later):
            return critical_path(self.timeline, mark, walker)
        node = int(later[np.argmin(self.timeline.start_us[later])])
        reached = max(float(self.timeline.start_us[node]), float(over))
        walked = walker.walk(node, reached, float(begun)).plain
        cut = [(n, e, c, b, min(o, float(over))) for n, e, c, b, o in walked if b < over]
        return TimelinePath(cut[::-1])

    def cycle(self, rank: int, index: int) -> TimelinePath:
        """What decides the period of a rank's step."""
        taken_us = self.timeline.end_us - self.timeline.start_us
        return self.periods.of_step(rank, index).path(self.timeline.graph, taken_us)

    def _deciding_stream(self, rank: int, index: int) -> int | None:
        """The resource of the device that takes most of the cycle; None where the device keeps
        up."""
        at = np.flatnonzero(self.periods.steps == index)
        row = ranks_of(self.timeline.graph).index(rank)
        if not len(at) or not self.periods.repeated:
            return None
        if not device_lag_us(self.period_us[row, at[0]], self.step_us[row, at[0]]):
            return None
        graph = self.timeline.graph
        by_stream: dict[int, float] = {}
        for node, _, _, start_us, end_us in self.cycle(rank, index).plain:
            if graph.on_device[node] and graph.nodes_.rank[node] == rank:
                stream = int(graph.nodes_.resource[node])
                by_stream[stream] = by_stream.get(stream, 0.0) + end_us - start_us
        return max(by_stream, key=lambda stream: by_stream[stream], default=None)

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
        taken_us = self.timeline.end_us - self.timeline.start_us
        earlier = earlier_work(graph)
        return float(taken_us[earlier[own[earlier]]].sum()), float(taken_us[own].sum())
