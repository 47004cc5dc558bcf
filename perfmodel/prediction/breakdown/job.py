"""Where the time of a trace went: device, host overheads, idle causes and the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.answers import made_by
from perfmodel.base.arrays import median
from perfmodel.base.units import counted, human_us
from perfmodel.errors import UsageError
from perfmodel.lowering.host.measure import measure
from perfmodel.prediction.breakdown import completeness
from perfmodel.prediction.breakdown.hotspots import Hotspots, NamedSums
from perfmodel.prediction.breakdown.tables import MAX_ROWS, TABLES, HotTables, rounded_records
from perfmodel.prediction.breakdown.waiting import (
    RankWaiting,
    Unexplained,
    rank_waiting,
    slowest_of,
    unexplained_warnings,
)
from perfmodel.timeline.critical_path import (
    Accounting,
    DeviceWork,
    PathWalker,
    TimelinePath,
    account,
    idle_gaps,
    idle_pieces,
)
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.memory import MemoryTimeline, memory_timelines
from perfmodel.timeline.period import DeviceLags, Periods
from perfmodel.timeline.schedule import (
    StepRole,
    Timeline,
    measured,
    steady_among,
    step_bounds,
    step_roles,
)
from perfmodel.trace import Trace, read

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.prediction.gains import Gain, Helps


SCHEMA = "perfmodel.breakdown/1"


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
    period_us: float = field(repr=False)
    """What steady steps that follow one another take, in the median."""
    _sums: dict[str, NamedSums] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        if table not in self._sums:
            self._sums[table] = TABLES[table].sums(self.hot)
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


@dataclass(frozen=True)
class Breakdown(HotTables):
    """Where the time of a trace went, by rank and step; tables in the mean over ranks."""

    source: str
    ranks: list[RankBreakdown]
    timeline: Timeline = field(repr=False)
    periods: Periods = field(repr=False)
    """What its steady steps take one after the other."""
    warnings: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    """What of it nobody can explain; they are the first of the warnings."""
    unrecorded: str = ""
    """Why nothing can be said of what would help, where the work itself was not recorded."""
    waiting: RankWaiting | None = None
    """What the ranks spend where they meet, per steady step; None where none do."""
    gaps: list[completeness.Gap] = field(default_factory=list)
    """What the recording cannot tell."""

    @property
    def slowest(self) -> RankBreakdown:
        """The rank that stands for the job, as in a replay."""
        waits = [rank.meets_us["waiting_us"] for rank in self.ranks]
        return self.ranks[slowest_of([rank.period_us for rank in self.ranks], waits)]

    def sums(self, table: str) -> NamedSums:
        return NamedSums.over([rank.sums(table) for rank in self.ranks])

    @cached_property
    def gains(self) -> list[Gain]:
        """What would help the job most, the largest first; each with what-if, command and gain."""
        return self.helps()[0]

    def helps(self, command: Sequence[str] | None = None, steps: slice = slice(None)) -> Helps:
        """`gains` of some `steps`, on top of a `command` of `predict`; or why there are none."""
        from perfmodel.prediction.gains import gains_or_why, predict_words

        graph = self.timeline.graph
        command = predict_words(graph, self.source) if command is None else command
        straggler = None if self.waiting is None else self.waiting.to_dict()
        about: dict[str, Any] = {"straggler": straggler, "steps": steps, "periods": self.periods}
        return gains_or_why(graph, graph.nodes_.duration_us, command, **about)

    def to_dict(self, most: int | None = MAX_ROWS, helps: Helps | None = None) -> dict[str, Any]:
        """The answer as `docs/schemas/breakdown.json` describes it: the verb's JSON.

        Tables have at most `most` rows; those beside `ranks` are of the job: in the mean over
        ranks. `helps` stands for what its method of that name gives.
        """
        gains, lost = self.helps() if helps is None else helps
        return {
            "schema": SCHEMA,
            "made_by": made_by(),
            "completeness": [gap.to_dict() for gap in self.gaps],
            "warnings": [*self.warnings, *lost],
            "summary": rounded_records([asdict(rank.summary) for rank in self.ranks]),
            "slowest_rank": self.slowest.rank,
            "ranks": [rank.to_dict(most) for rank in self.ranks],
            "straggler": None if self.waiting is None else self.waiting.to_dict(),
            **self.hot_tables(most),
            "overlap": communication_overlap(*(rank.summary for rank in self.ranks)),
            "gains": [gain.to_dict() for gain in gains],
        }

    def table(self, name: str, rank: int | None = None) -> pd.DataFrame:
        """One of the tables as a frame: `top_kernels top_operators annotations collectives rates`,
        of one rank or in the mean over all; `summary memory`, rank by rank.

        Raises `UsageError` where there is no such table or rank.
        """
        import pandas as pd

        chosen = [each for each in self.ranks if rank is None or each.rank == rank]
        if not chosen or name not in (*TABLES, "summary", "memory"):
            tables = ", ".join((*TABLES, "summary", "memory"))
            raise UsageError(f"no table {name!r} of rank {rank}; tables: {tables}")
        if name == "memory":
            parts = [each.to_frame().assign(rank=r.rank) for r in chosen for each in r.memory]
            return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        if name == "summary":
            return pd.DataFrame([each.summary for each in chosen])
        return pd.DataFrame((self if rank is None else chosen[0]).rows(name))

    def plot(self, rank: int | None = None, step: int = 0) -> Figure:
        """The timeline of one step (index) of one rank (default: the first), as it was measured.

        Raises `UsageError` where there is no such rank or step.
        """
        from perfmodel.timeline.critical_path import step_figure

        chosen = next((r for r in self.ranks if rank is None or r.rank == rank), None)
        if chosen is None or not -len(chosen.steps) <= step < len(chosen.steps):
            known = ", ".join(f"{r.rank} ({len(r.steps)} steps)" for r in self.ranks)
            raise UsageError(f"no step {step} of rank {rank}; there are ranks {known}")
        shown, marks = chosen.steps[step], self.timeline.graph.marks
        mark = int(np.flatnonzero(marks.rank == chosen.rank)[shown.index])
        return step_figure(self.timeline, mark, path=shown.critical_path, idle=shown.idle)

    def __repr__(self) -> str:
        return (
            f"Breakdown({self.source!r}: ranks {[rank.rank for rank in self.ranks]}, mean step "
            f"{human_us(self.slowest.summary.step_us)}, {counted(len(self.warnings), 'warning')})"
        )

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        keys = ("step_us", "gpu_active_us", "gpu_idle_us", "compute_us", "comm_us", "memcpy_us")
        frame = self.to_frame()[["rank", "step", *keys]]
        return table_html(frame.values.tolist(), list(frame), f"Breakdown of {self.source}")

    def to_frame(self) -> pd.DataFrame:
        """One row per rank and step: the accounting, idle causes as `idle_*`, path as `path_*`;
        where ranks meet, each row has its rank's mean transfer and waiting per step."""
        import pandas as pd

        return pd.DataFrame(
            {"rank": rank.rank, "step": step.name}
            | {k: v for k, v in asdict(step.accounting).items() if k != "kernel_sum_us"}
            | {f"idle_{cause}_us": v for cause, v in step.idle_by_cause.items()}
            | {f"path_{kind}_us": v for kind, v in step.critical_path_by_kind.items()}
            | ({} if self.waiting is None else rank.meets_us)
            for rank in self.ranks
            for step in rank.steps
        ).fillna(0.0)


def breakdown(trace: Trace | str | Path) -> Breakdown:
    """Where the time of a trace went, as it was measured.

    Parameters:
        trace: a trace, or what `read` takes.
    Returns: a `Breakdown`: per rank and step, and in the mean over ranks; `gains` is what would
    help.
    Raises: `TraceError` when there is nothing to break down (an execution trace has no times).
    Example: `perfmodel.breakdown("demo:2rank").gains`.
    """
    if not isinstance(trace, Trace):
        trace = read(trace)
    graph = build_graph(trace)
    timeline = measured(graph)
    walker, roles = PathWalker(timeline), step_roles(timeline)
    steady = steady_among(roles)
    lags, waiting = DeviceLags.of(timeline, steady), rank_waiting(timeline, steady)
    missing = completeness.unrecorded(trace, graph)
    # Of a recording that lacks its work, the device that it names; else what it ran on.
    named = [device.name for rank in trace.ranks for device in rank.devices if device.name]
    device_name = named[0] if named and missing else trace.device
    ranks, unexplained = [], list[Unexplained]()
    for rank, links, period_us in zip(trace.ranks, trace.links, lags.period_us, strict=True):
        overheads = measure(rank, links)
        device, steps = DeviceWork.of(timeline, rank.rank), list[StepBreakdown]()
        for mark in np.flatnonzero(graph.marks.rank == rank.rank).tolist():
            index, bounds_us = len(steps), step_bounds(timeline, mark)
            path = lags.path(mark, walker)
            unexplained.append(Unexplained.of(graph, mark, path))
            steps.append(
                StepBreakdown(
                    index,
                    graph.marks.name[mark],
                    roles[index],
                    account(device, *bounds_us),
                    overheads.of_step(index).table(),
                    idle_pieces(idle_gaps(device, *bounds_us), walker),
                    path,
                )
            )
        hot = Hotspots(rank, links, tuple(steady.tolist()))
        meets_us: dict[str, float | None] = {"transfer_us": None, "waiting_us": None}
        if waiting is not None:
            meets_us |= {key: round(us, 3) for key, us in waiting.of_rank(rank.rank).items()}
        about = (rank.rank, device_name, steps)
        ranks.append(RankBreakdown(*about, hot, meets_us, median(period_us)))
    cautions = [*lags.cautions(), *unexplained_warnings(unexplained)]
    said = [f"{trace.source}: {missing}"] if missing else []
    return Breakdown(
        trace.source,
        ranks,
        timeline,
        lags.periods,
        [*said, *cautions, *trace.warnings, *graph.warnings],
        cautions,
        missing,
        waiting,
        completeness.completeness(trace, graph),
    )
