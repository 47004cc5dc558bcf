"""One rank: its steps, and tables of what takes their time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from perfmodel.errors import PerfmodelError
from perfmodel.prediction.breakdown.captured import LaidBack
from perfmodel.prediction.breakdown.completeness import QueueDepth, queue_depths
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.tables import (
    NamedSums,
    Rates,
    Records,
    kernel_rows,
    operator_rows,
    range_rows,
)
from perfmodel.timeline.critical_path import PathWalker, TimelinePath
from perfmodel.timeline.idle import Accounting, DeviceWork, idle_gaps, idle_pieces
from perfmodel.timeline.memory import MemoryTimeline, memory_timelines
from perfmodel.timeline.period import DeviceLags
from perfmodel.timeline.schedule import StepRole, step_bounds
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE

T = TypeVar("T")
UNFIT = (PerfmodelError, ArithmeticError, LookupError, TypeError, ValueError)
"""What lowering raises of arguments that no rule expects: of those a table is left out, no more."""
COLLECTIVES = "collectives"
MAX_ROWS = 100
"""Of each table of what takes the time, in JSON."""


@dataclass(frozen=True)
class StepBreakdown:
    """One step of one rank. Times in microseconds; what each means is in docs/numbers.md."""

    name: str
    role: StepRole
    accounting: Accounting
    idle_by_cause: dict[str, float]
    overheads: dict[str, Any]
    """`{thread: {"raw" | "no_blocking": {type: {count, mean_us, median_us, total_us}}}}`."""
    critical_path_by_kind: dict[str, float]
    mark: int = field(repr=False)
    """The row of `graph.marks` that it is."""
    device: DeviceWork = field(repr=False)
    walker: PathWalker = field(repr=False)
    lags: DeviceLags = field(repr=False)

    @property
    def critical_path(self) -> TimelinePath:
        """The chain that decided when the step ended, early to late, walked anew; where the device
        lags, the chain that decided how far it was (`DeviceLags.path`)."""
        return self.lags.path(self.mark, self.walker)

    @property
    def idle(self) -> TimelinePath:
        """The idle time piece by piece, walked anew."""
        bounds = step_bounds(self.device.timeline, self.mark)
        return idle_pieces(idle_gaps(self.device, *bounds), self.walker)


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
    def sums(self, of: str) -> NamedSums:
        """One of the attributes `kernels operators ranges` of `Hotspots`, or its collectives."""

    def top_kernels(self, most: int | None = None) -> Records:
        """Kernels, copies and memsets, most time first; per step."""
        return kernel_rows(self.sums("kernels"), most)

    def top_operators(self, most: int | None = None) -> Records:
        """Operators by the device time of what they launch, then by host time; per step."""
        return operator_rows(self.sums("operators"), most)

    def annotations(self, most: int | None = None) -> Records:
        """Annotated ranges and modules, longest on the host first; per step."""
        return range_rows(self.sums("ranges"), most)

    def collectives(self, most: int | None = None) -> Records:
        """Collectives by name and process group, most time first; per step."""
        from perfmodel.prediction.breakdown.rates import collective_rows

        sums = self.sums(COLLECTIVES)
        return collective_rows(sums, most) if sums.names else []

    def hot_tables(self, most: int | None) -> dict[str, Any]:
        """These tables and the rates, at most so many rows of each, as JSON."""
        return {
            "top_kernels": rounded_records(self.top_kernels(most)),
            "top_operators": rounded_records(self.top_operators(most)),
            "annotations": rounded_records(self.annotations(most)),
            "collectives": rounded_records(self.collectives(most)),
            "rates": self.rates.to_dict(most),
        }


@dataclass(frozen=True)
class RankBreakdown(HotTables):
    """The steps of one rank, and tables of them; those are made when they are asked for.

    Tables are means over the steps that are not warm-up, or over all where every one is.
    """

    rank: int
    device: str
    steps: list[StepBreakdown]
    indices: tuple[int, ...] = field(repr=False)
    """Of each step, which one of the trace it is."""
    hot: Hotspots = field(repr=False)
    waiting_us: float | None = None
    laid_back: LaidBack | None = field(default=None, repr=False)
    """Where the kernels of its graphs are known of an eager run."""
    missing: list[str] = field(default_factory=list)
    """Tables that could not be made, and why; filled as they are asked for."""

    def of_steps(self, chosen: slice) -> RankBreakdown:
        """Some of the steps, and tables of those."""
        kept = self.indices[chosen]
        held = set(kept)
        counted = tuple(index for index in self.hot.steps if index in held)
        hot = replace(self.hot, steps=counted or kept)
        return replace(self, steps=self.steps[chosen], indices=kept, hot=hot)

    @cached_property
    def summary(self) -> Summary:
        chosen = set(self.hot.steps)
        counted = [
            step for index, step in zip(self.indices, self.steps, strict=True) if index in chosen
        ]
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
            waiting_us=self.waiting_us,
            main_cause=main,
            main_cause_us=causes[main] if main else 0.0,
        )

    def sums(self, of: str) -> NamedSums:
        if self.laid_back is not None and of in ("operators", "ranges"):
            of_graphs: NamedSums = getattr(self.laid_back, of)(self.hot)
            return of_graphs
        found: NamedSums = self._collectives if of == COLLECTIVES else getattr(self.hot, of)
        return found

    @cached_property
    def _collectives(self) -> NamedSums:
        from perfmodel.prediction.breakdown.rates import collective_sums

        nothing = NamedSums((), {}, 0, 0.0, 0.0)
        return self._optional("collectives", lambda: collective_sums(self.hot), nothing)

    @cached_property
    def rates(self) -> Rates:
        rank, note = self.hot.rank, ""
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
                note = f"the shapes cannot be used: {_said(error)}"
        return Rates([], "", 0.0, note)

    @cached_property
    def queue_depths(self) -> list[QueueDepth]:
        """Per step: how many operations were launched and had not begun."""
        hot, nothing = self.hot, list[QueueDepth]()
        found = self._optional("launch queue", lambda: queue_depths(hot.rank, hot.links), nothing)
        return [found[index] for index in self.indices] if found else []

    @cached_property
    def memory(self) -> list[MemoryTimeline]:
        """What the allocators held over the whole recording, per device; GPUs first."""
        hot = self.hot
        return self._optional("memory", lambda: memory_timelines(hot.rank, hot.links.steps), [])

    def _optional(self, table: str, make: Callable[[], T], nothing: T) -> T:
        """A table; where it cannot be made, nothing, so that the others stand."""
        try:
            return make()
        except UNFIT as error:
            self.missing.append(f"rank {self.rank}: no table of {table}: {_said(error)}")
            return nothing

    def check_tables(self) -> list[str]:
        """Make the optional tables; which could not be made, and why."""
        _made = self._collectives, self.queue_depths, self.memory
        return self.missing

    def to_dict(self, most: int | None = MAX_ROWS) -> dict[str, Any]:
        """Steps and tables, at most so many rows of each."""
        return {
            "steps": [
                {
                    "name": step.name,
                    "role": step.role.value,
                    **rounded_records([asdict(step.accounting)], ("kernel_sum_us",))[0],
                    "idle_by_cause": {k: round(v, 6) for k, v in step.idle_by_cause.items()},
                    "overheads": step.overheads,
                    "critical_path_by_kind": {
                        k: round(v, 6) for k, v in step.critical_path_by_kind.items()
                    },
                }
                for step in self.steps
            ],
            **self.hot_tables(most),
            "overlap": communication_overlap(self.summary),
            "queue_depth": rounded_records([depth._asdict() for depth in self.queue_depths]),
            "memory": [each.to_dict() for each in self.memory],
        }


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, PerfmodelError) else repr(error)


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


def rounded_records(records: Records, without: Sequence[str] = ()) -> Records:
    """Floats as they are written: times to the nanosecond."""
    return [
        {
            key: round(value, 6 if key.endswith("_frac") else 3)
            if isinstance(value, float)
            else value
            for key, value in record.items()
            if key not in without
        }
        for record in records
    ]
