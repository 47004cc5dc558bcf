"""One rank: its steps, and tables of what takes their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.rates import collective_sums, rate_sums
from perfmodel.prediction.breakdown.tables import (
    MAX_ROWS,
    HotTables,
    NamedSums,
    rounded_records,
)
from perfmodel.timeline.critical_path import Accounting, TimelinePath
from perfmodel.timeline.memory import MemoryTimeline, memory_timelines
from perfmodel.timeline.schedule import StepRole

_SUMS: Mapping[str, Callable[[Hotspots], NamedSums]] = {
    "top_kernels": attrgetter("kernels"),
    "top_operators": attrgetter("operators"),
    "annotations": attrgetter("ranges"),
    "modules": attrgetter("modules"),
    "collectives": collective_sums,
    "rates": rate_sums,
}


@dataclass(frozen=True)
class StepBreakdown:
    """One step of one rank. Times in microseconds; what each means is in docs/numbers.md."""

    index: int
    """Which step of the trace it is."""
    name: str
    role: StepRole
    accounting: Accounting
    overheads: dict[str, Any]
    """`{thread: {"raw" | "no_blocking": {type: {count, mean_us, median_us, total_us}}}}`."""
    idle: TimelinePath = field(repr=False)
    """The idle time piece by piece."""
    critical_path: TimelinePath = field(repr=False)
    """The chain that decided when the step ended, early to late; where the device lags, the chain
    that decided how far it was (`DeviceLags.path`)."""

    @cached_property
    def idle_by_cause(self) -> dict[str, float]:
        return self.idle.by_cause()

    @cached_property
    def critical_path_by_kind(self) -> dict[str, float]:
        return self.critical_path.by_cause()

    def to_dict(self) -> dict[str, Any]:
        (accounting,) = rounded_records([asdict(self.accounting)])
        del accounting["kernel_sum_us"]
        path = self.critical_path_by_kind
        return {
            "name": self.name,
            "role": self.role.value,
            **accounting,
            "idle_by_cause": {cause: round(us, 6) for cause, us in self.idle_by_cause.items()},
            "overheads": self.overheads,
            "critical_path_by_kind": {kind: round(us, 6) for kind, us in path.items()},
        }


@dataclass(frozen=True)
class Summary:
    """A rank in one line: means over its steps that are not warm-up. Times in microseconds."""

    rank: int
    steps: int
    """How many steps that is."""
    step_us: float
    gpu_active_us: float
    gpu_idle_us: float
    comm_us: float
    exposed_comm_us: float
    hidden_comm_frac: float | None
    """Share of the communication during which the device ran something else too."""
    waiting_us: float | None
    """For the others, where ranks meet."""
    main_cause: str | None
    """The cause of most idle time; of most of the critical path where there is no device."""
    main_cause_us: float


@dataclass(frozen=True)
class RankBreakdown(HotTables):
    """The steps of one rank, and tables of them; those are made when they are asked for.

    Tables are means over the steps that are not warm-up, or over all where every one is.
    """

    rank: int
    device: str
    steps: list[StepBreakdown] = field(repr=False)
    hot: Hotspots = field(repr=False)
    meets_us: dict[str, float | None]
    """`transfer_us` and `waiting_us` at the collectives where ranks meet, per step."""

    def of_steps(self, chosen: slice) -> RankBreakdown:
        """Some of the steps, and tables of those."""
        kept = self.steps[chosen]
        indices = tuple(step.index for step in kept)
        counted = tuple(sorted(set(self.hot.steps).intersection(indices)))
        return replace(self, steps=kept, hot=replace(self.hot, steps=counted or indices))

    @cached_property
    def summary(self) -> Summary:
        steady = set(self.hot.steps)
        counted = [step for step in self.steps if step.index in steady]
        means = {
            key: float(np.mean([getattr(step.accounting, key) for step in counted]))
            for key in ("step_us", "gpu_active_us", "gpu_idle_us", "comm_us", "exposed_comm_us")
        }
        causes = defaultdict[str, float](float)
        for step in counted:
            for cause, us in (step.idle_by_cause or step.critical_path_by_kind).items():
                causes[cause] += us / len(counted)
        main = min(causes, key=lambda cause: (-causes[cause], cause), default=None)
        comm_us = means["comm_us"]
        return Summary(
            self.rank,
            len(counted),
            **means,
            hidden_comm_frac=1 - means["exposed_comm_us"] / comm_us if comm_us else None,
            waiting_us=self.meets_us["waiting_us"],
            main_cause=main,
            main_cause_us=causes[main] if main else 0.0,
        )

    @cached_property
    def _sums(self) -> dict[str, NamedSums]:
        return {}

    def sums(self, table: str) -> NamedSums:
        if table not in self._sums:
            self._sums[table] = _SUMS[table](self.hot)
        return self._sums[table]

    @cached_property
    def memory(self) -> list[MemoryTimeline]:
        """What the allocators held over the whole recording, per device; GPUs first."""
        return memory_timelines(self.hot.rank, self.hot.links.steps)

    def to_dict(self, most: int | None = MAX_ROWS) -> dict[str, Any]:
        """Steps and tables, at most so many rows of each."""
        return {
            "rank": self.rank,
            "device": self.device,
            **self.meets_us,
            "steps": [step.to_dict() for step in self.steps],
            **self.hot_tables(most),
            "overlap": communication_overlap(self.summary),
            "memory": [each.to_dict() for each in self.memory],
        }


def communication_overlap(*ranks: Summary) -> dict[str, float | None]:
    """Communication in the mean over ranks, and how much of it other device work hides."""
    comm_us = float(np.mean([rank.comm_us for rank in ranks]))
    exposed_us = float(np.mean([rank.exposed_comm_us for rank in ranks]))
    return {
        "comm_us": round(comm_us, 3),
        "hidden_us": round(comm_us - exposed_us, 3),
        "exposed_us": round(exposed_us, 3),
        "hidden_frac": round(1 - exposed_us / comm_us, 6) if comm_us else None,
    }
