"""One rank: its steps, and tables of what takes their time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.base.units import human_us
from perfmodel.errors import PerfmodelError
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.tables import (
    MAX_ROWS,
    UNFIT,
    NamedSums,
    Rates,
    Records,
    collective_rows,
    kernel_rows,
    module_rows,
    operator_rows,
    range_rows,
    rate_rows,
    rounded_records,
)
from perfmodel.timeline.critical_path import Accounting, TimelinePath
from perfmodel.timeline.memory import MemoryTimeline, memory_timelines
from perfmodel.timeline.schedule import StepRole
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE

ROWS = {
    "top_kernels": kernel_rows,
    "top_operators": operator_rows,
    "annotations": range_rows,
    "modules": module_rows,
    "collectives": collective_rows,
    "rates": rate_rows,
}
"""The tables of what takes the time: their rows from sums by name."""
_OF_HOTSPOTS = {"top_kernels": "kernels", "top_operators": "operators", "annotations": "ranges"}


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


class HotTables(ABC):
    """Tables of what takes the time of a step: of a rank, or in the mean over ranks."""

    @cached_property
    @abstractmethod
    def rates(self) -> Rates:
        """Achieved FLOP/s and bytes/s of the operators with shapes."""

    @abstractmethod
    def sums(self, table: str) -> NamedSums:
        """What the rows of one of the tables `ROWS` are made of."""

    def rows(self, table: str, most: int | None = None) -> Records:
        """Of one of the tables `ROWS`, per step, the largest first."""
        return ROWS[table](self.sums(table), most)

    def hot_tables(self, most: int | None) -> dict[str, Any]:
        """The tables, at most so many rows of each, as JSON."""
        names = (name for name in ROWS if name != "rates")
        found = {name: rounded_records(self.rows(name, most)) for name in names}
        return found | {"rates": self.rates.to_dict(most)}


@dataclass(frozen=True)
class RankBreakdown(HotTables):
    """The steps of one rank, and tables of them; those are made when they are asked for.

    Tables are means over the steps that are not warm-up, or over all where every one is.
    """

    rank: int
    device: str
    steps: list[StepBreakdown]
    hot: Hotspots = field(repr=False)
    meets_us: dict[str, float | None]
    """`transfer_us` and `waiting_us` at the collectives where ranks meet, per step."""

    def __repr__(self) -> str:
        step_us = human_us(self.summary.step_us)
        return f"RankBreakdown(rank {self.rank}: {len(self.steps)} steps, mean {step_us})"

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

    def sums(self, table: str) -> NamedSums:
        if table == "rates":
            return self.rates.sums
        if table == "collectives":
            return self._collectives
        if table == "modules":
            return self.hot.modules
        found: NamedSums = getattr(self.hot, _OF_HOTSPOTS[table])
        return found

    @cached_property
    def _collectives(self) -> NamedSums:
        from perfmodel.prediction.breakdown.rates import collective_sums  # lowers operators

        return collective_sums(self.hot)

    @cached_property
    def rates(self) -> Rates:
        rank = self.hot.rank
        ops = rank.of(Category.CPU_OP)
        if not len(self.hot.links.device_rows):
            note = "no device operations"
        elif not len(ops) or (rank.input_shapes[ops] == NONE).all():
            note = "no shapes recorded: profile with record_shapes=True"
        else:
            from perfmodel.prediction.breakdown.rates import rates  # lowers operators

            try:
                return rates(self.hot)
            except UNFIT as error:
                said = str(error) if isinstance(error, PerfmodelError) else repr(error)
                note = f"the shapes cannot be used: {said}"
        return Rates(NamedSums.none(), note=note)

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
