"""Where the time of a trace went: device, host overheads, idle causes and the critical path."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.attribution.accounting import Accounting, account
from perfmodel.attribution.chains import Chains
from perfmodel.attribution.device import DeviceWork
from perfmodel.attribution.idle import idle_by_cause, idle_gaps, idle_pieces
from perfmodel.attribution.path import Path, Walker, critical_path
from perfmodel.attribution.steps import Role, ranks_of, step_bounds, step_roles
from perfmodel.attribution.straggler import Waiting, waiting
from perfmodel.attribution.unexplained import Unexplained, unexplained_warnings
from perfmodel.errors import UsageError
from perfmodel.graph import build_graph
from perfmodel.overheads import measure
from perfmodel.overheads.samples import Table
from perfmodel.timeline.binding import bind
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.trace import Links, RankTrace, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SCHEMA = "perfmodel.breakdown/1"


@dataclass(frozen=True)
class StepBreakdown:
    """One step of one rank. Times in microseconds; what each means is in docs/numbers.md."""

    name: str
    role: Role
    accounting: Accounting
    idle_by_cause: dict[str, float]
    overheads: dict[str, Any]
    """`{thread: {"raw" | "no_blocking": {type: {count, mean_us, median_us, total_us}}}}`."""
    critical_path_by_kind: dict[str, float]
    mark: int = field(repr=False)
    """The row of `graph.marks` that it is."""
    device: DeviceWork = field(repr=False)
    walker: Walker = field(repr=False)

    @property
    def critical_path(self) -> Path:
        """The chain that decided when the step ended, early to late, walked anew."""
        return critical_path(self.device.timeline, self.mark, self.walker)

    @property
    def idle(self) -> Path:
        """The idle time piece by piece, walked anew."""
        bounds = step_bounds(self.device.timeline, self.mark)
        return idle_pieces(idle_gaps(self.device, *bounds), self.walker)


@dataclass(frozen=True)
class RankBreakdown:
    """The steps of one rank."""

    rank: int
    device: str
    steps: list[StepBreakdown]


@dataclass(frozen=True)
class Breakdown:
    """Where the time of a trace went, by rank and step."""

    source: str
    ranks: list[RankBreakdown]
    timeline: Timeline = field(repr=False)
    warnings: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    """What of it nobody can explain; they are the first of the warnings."""
    waiting: Waiting | None = None
    """What the ranks spend where they meet, per steady step; None where none do."""

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/breakdown.json` describes it."""
        ranks = [
            {
                "rank": r.rank,
                "device": r.device,
                **self.meets_us(r.rank),
                "steps": [_step_dict(s) for s in r.steps],
            }
            for r in self.ranks
        ]
        straggler = None if self.waiting is None else self.waiting.to_dict()
        return {
            "schema": SCHEMA,
            "warnings": self.warnings,
            "ranks": ranks,
            "straggler": straggler,
        }

    def meets_us(self, rank: int) -> dict[str, float | None]:
        """Transfer and waiting of a rank at the collectives where ranks meet, per step."""
        found = self.waiting
        if found is None:
            return {"transfer_us": None, "waiting_us": None}
        return {
            "transfer_us": round(found.transfer_us.get(rank, 0.0), 3),
            "waiting_us": round(found.waiting_us.get(rank, 0.0), 3),
        }

    def plot(self, rank: int | None = None, step: int = 0) -> Figure:
        """The timeline of one step (index) of one rank (default: the first), as it was measured.

        Raises `UsageError` where there is no such rank or step.
        """
        from perfmodel.attribution.figures import step_figure

        chosen = next((r for r in self.ranks if rank is None or r.rank == rank), None)
        if chosen is None or not -len(chosen.steps) <= step < len(chosen.steps):
            known = ", ".join(f"{r.rank} ({len(r.steps)} steps)" for r in self.ranks)
            raise UsageError(f"no step {step} of rank {rank}; there are ranks {known}")
        rows = np.flatnonzero(self.timeline.graph.marks.rank == chosen.rank)
        found = chosen.steps[step]
        return step_figure(
            self.timeline, int(rows[step]), path=found.critical_path, idle=found.idle
        )

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        keys = ("step_us", "gpu_active_us", "gpu_idle_us", "compute_us", "comm_us", "memcpy_us")
        rows = [
            [rank.rank, step.name, *(getattr(step.accounting, key) for key in keys)]
            for rank in self.ranks
            for step in rank.steps
        ]
        return table_html(rows, ["rank", "step", *keys], f"Breakdown of {self.source}")

    def to_frame(self) -> pd.DataFrame:
        """One row per rank and step: the accounting, idle causes as `idle_*`, path as `path_*`;
        where ranks meet, each row has its rank's mean transfer and waiting per step."""
        import pandas as pd

        return pd.DataFrame(
            {"rank": rank.rank, "step": step.name}
            | {k: v for k, v in asdict(step.accounting).items() if k != "kernel_sum_us"}
            | {f"idle_{cause}_us": v for cause, v in step.idle_by_cause.items()}
            | {f"path_{kind}_us": v for kind, v in step.critical_path_by_kind.items()}
            | ({} if self.waiting is None else self.meets_us(rank.rank))
            for rank in self.ranks
            for step in rank.steps
        ).fillna(0.0)


def breakdown(trace: Trace, *, profiler_us_per_event: float = 0.0) -> Breakdown:
    """Break a trace down as it was measured.

    `profiler_us_per_event` is taken off the host overheads for every event that the profiler
    recorded inside them (Lin et al. use 2); nothing else is corrected.

    Raises `TraceError` when there is nothing to break down (an execution trace has no times).
    """
    graph = build_graph(trace)
    timeline = measured(graph)
    overheads = {
        rank.rank: _overheads(rank, links, profiler_us_per_event)
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    }
    binding = bind(timeline)
    walker, chains = Walker.of(timeline, binding), Chains.of(timeline, binding)
    marks, roles = graph.marks, step_roles(timeline)
    steps: dict[int, list[StepBreakdown]] = {rank: [] for rank in ranks_of(graph)}
    devices = {rank: DeviceWork.of(timeline, rank) for rank in steps}
    unexplained: list[Unexplained] = []
    for mark, (rank, name) in enumerate(zip(marks.rank.tolist(), marks.name, strict=True)):
        bounds = step_bounds(timeline, mark)
        gaps = idle_gaps(devices[rank], *bounds)
        path = critical_path(timeline, mark, walker)
        unexplained.append(Unexplained.of(graph, mark, path))
        steps[rank].append(
            StepBreakdown(
                name=name,
                role=roles[len(steps[rank])],
                accounting=account(devices[rank], *bounds),
                idle_by_cause=idle_by_cause(gaps, walker, chains, binding),
                overheads=overheads[rank][len(steps[rank])],
                critical_path_by_kind=path.by_cause(),
                mark=mark,
                device=devices[rank],
                walker=walker,
            )
        )
    ranks = [RankBreakdown(rank, trace.device, found) for rank, found in steps.items()]
    cautions = unexplained_warnings(unexplained)
    warnings = [*cautions, *trace.warnings, *graph.warnings]
    meets = waiting(timeline, walker)
    return Breakdown(trace.source, ranks, timeline, warnings, cautions, meets)


def _overheads(rank: RankTrace, links: Links, profiler_us_per_event: float) -> list[Table]:
    """Per step of a rank: its host overheads."""
    samples = measure(rank, links, profiler_us_per_event=profiler_us_per_event)
    return [samples.of_step(step).table() for step in range(len(links.steps))]


def _step_dict(step: StepBreakdown) -> dict[str, Any]:
    figures = {k: round(v, 3) for k, v in asdict(step.accounting).items() if k != "kernel_sum_us"}
    return {
        "name": step.name,
        "role": step.role.value,
        **figures,
        "idle_by_cause": {k: round(v, 6) for k, v in step.idle_by_cause.items()},
        "overheads": step.overheads,
        "critical_path_by_kind": {k: round(v, 6) for k, v in step.critical_path_by_kind.items()},
    }
