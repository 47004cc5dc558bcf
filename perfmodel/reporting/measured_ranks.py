"""A trace as it was measured, rank by rank: figures of its steps, their scatter, and its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.base.arrays import median
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.tables import NamedSums, range_rows
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import DEVICE_FIGURES, Result
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.memory import memory_timelines, shown_timelines
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.timeline.steps import steady_steps, step_bounds
from perfmodel.trace import Trace
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links

STEP_KEYS = ("step_us", *DEVICE_FIGURES)
FEW_STEPS = 5
"""Of fewer steps the scatter is half of their range; of more, outliers do not count."""
DEVIATION = 1.4826
"""Median absolute deviations in a standard deviation of normal values."""


@dataclass(frozen=True)
class RankSteps:
    """One rank's steps: medians in microseconds, and by which share of them steps scatter."""

    rank: int
    medians_us: Mapping[str, float]
    """By name: `step`, `gpu_active`, `comm`, ..."""
    scatter_frac: Mapping[str, float]
    """Of the names of which several steps are known."""
    memory_bytes: float | None = None
    """Peak of what its GPUs (without any, its host) allocated, where that was recorded."""


def scatter_frac(values: Sequence[float]) -> float | None:
    """By which share of their median values scatter; None for fewer than two, and around 0."""
    middle = median(np.asarray(values, float)) if len(values) > 1 else 0.0
    if not middle:
        return None
    if len(values) < FEW_STEPS:
        return float(np.ptp(values)) / 2 / middle
    return DEVIATION * median(np.abs(np.asarray(values) - middle)) / middle


def scatters(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """`scatter_frac` of each column that has one."""
    found = {name: scatter_frac(values) for name, values in columns.items()}
    return {name: share for name, share in found.items() if share is not None}


def short(key: str) -> str:
    """`step_us` as `step`."""
    return key.removesuffix("_us")


@dataclass(frozen=True)
class MeasuredRanks:
    """A trace and its timeline, of which each rank can be asked."""

    trace: Trace
    timeline: Timeline

    @classmethod
    def of(cls, trace: Trace) -> MeasuredRanks:
        """Raises `TraceError` where there is nothing to time."""
        return cls(trace, measured(build_graph(trace)))

    @cached_property
    def job(self) -> Result:
        """Of the slowest rank."""
        return self.of_rank(None)

    def of_rank(self, rank: int | None) -> Result:
        """Medians, families and path of one rank."""
        return summarise(self.timeline, hardware=self.trace.device, mode="measured", rank=rank)

    @property
    def is_window(self) -> bool:
        """Whether nothing marks steps, so that how much work is in one is anybody's guess."""
        return any(links.steps.is_window for links in self.trace.links)

    @cached_property
    def steps(self) -> dict[int, RankSteps]:
        """By rank."""
        marks, steady = self.timeline.graph.marks, steady_steps(self.timeline)
        found = {}
        for rank in self.job.ranks:
            rows = np.flatnonzero(marks.rank == rank.rank)[steady]
            work = DeviceWork.of(self.timeline, rank.rank)
            accounts = [account(work, *step_bounds(self.timeline, int(row))) for row in rows]
            columns = {short(key): [getattr(each, key) for each in accounts] for key in STEP_KEYS}
            found[rank.rank] = RankSteps(
                rank.rank,
                {short(key): float(getattr(rank, key)) for key in STEP_KEYS},
                scatters(columns),
                self._memory_bytes(rank.rank),
            )
        return found

    def _recorded(self, rank: int) -> tuple[RankTrace, Links]:
        at = [each.rank for each in self.trace.ranks].index(rank)
        return self.trace.ranks[at], self.trace.links[at]

    def _memory_bytes(self, rank: int) -> float | None:
        recorded, links = self._recorded(rank)
        timelines = shown_timelines(memory_timelines(recorded, links.steps))
        return max((float(each.allocated_bytes.max()) for each in timelines), default=None)

    def _hot(self, rank: int) -> Hotspots:
        return Hotspots(*self._recorded(rank), tuple(steady_steps(self.timeline).tolist()))

    def work(self, rank: int) -> NamedSums:
        """What a rank's steady steps ran, by name: kernels, else operators."""
        hot = self._hot(rank)
        return hot.kernels if len(hot.kernels.names) else hot.operators

    def modules_us(self, rank: int) -> tuple[dict[str, float], dict[str, float]]:
        """Per class of modules, and per place in their tree, the device time that it launched per
        step; the host's without a device."""
        hot = self._hot(rank)
        by = "device_us" if len(hot.links.device_rows) else "host_us"
        rows = [row for row in range_rows(hot.ranges) if row["kind"] == "module"]
        classes = {row["name"].partition(": ")[2]: row[by] for row in rows}
        return classes, {row["name"].strip("/"): row[by] for row in range_rows(hot.modules)}


SHARED_FRAC, ALIKE_FRAC, AGREE_FRAC = 1 / 2, 0.1, 2 / 3
"""assumed: work is alike where names of half the time are on both sides, and one is more of it
where the counts of two thirds of that grew by one factor, to a tenth."""
SAME_FRAC = 0.02
"""Closer to 1 the amounts are the same."""


def work_ratio(a: NamedSums, b: NamedSums) -> float:
    """How many times the work of `a` a step of `b` holds, by counts of what both ran; 1 where the
    two run other work."""
    by = "host_us" if "host_us" in a.columns and "host_us" in b.columns else "device_us"
    place = {name: at for at, name in enumerate(b.names)}
    shared = [(at, place[name]) for at, name in enumerate(a.names) if name in place]
    if not shared or not (a.step_count and b.step_count):
        return 1.0
    mine, other = np.array(shared, np.int64).T
    weights = [side.columns[by] / side.step_count for side in (a, b)]
    weight = weights[0][mine] + weights[1][other]
    least = SHARED_FRAC * sum(float(each.sum()) for each in weights)
    if not weight.sum() or weight.sum() < least:
        return 1.0
    per_step = b.columns["count"][other] / b.step_count, a.columns["count"][mine] / a.step_count
    ratios = per_step[0] / per_step[1]
    order = np.argsort(ratios, kind="stable")
    passed = np.cumsum(weight[order])
    ratio = float(ratios[order[np.searchsorted(passed, passed[-1] / 2)]])
    agrees = weight[np.abs(ratios / ratio - 1) <= ALIKE_FRAC].sum() / weight.sum()
    if agrees < AGREE_FRAC or abs(ratio - 1) <= SAME_FRAC:
        return 1.0
    return ratio
