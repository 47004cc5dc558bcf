"""Where the time of a trace went: device, host overheads, idle causes and the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.provenance import made_by
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.lowering.host.measure import measure
from perfmodel.prediction.breakdown.completeness import (
    Gap,
    Unexplained,
    completeness,
    device_name,
    unexplained_warnings,
    unrecorded,
)
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.rank import (
    ROWS,
    HotTables,
    RankBreakdown,
    StepBreakdown,
    communication_overlap,
)
from perfmodel.prediction.breakdown.straggler import RankWaiting, rank_waiting
from perfmodel.prediction.breakdown.tables import (
    MAX_ROWS,
    NamedSums,
    Rates,
    rounded_records,
)
from perfmodel.timeline.critical_path import DeviceWork, PathWalker, account, idle_gaps, idle_pieces
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.period import DeviceLags, Periods
from perfmodel.timeline.schedule import Timeline, measured, steady_steps, step_bounds, step_roles
from perfmodel.trace import Trace, read

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.prediction.gains import Gain, Helps


SCHEMA = "perfmodel.breakdown/2"


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
    gaps: list[Gap] = field(default_factory=list)
    """What the recording cannot tell."""

    @property
    def slowest(self) -> RankBreakdown:
        """The rank that the others wait for; where ranks do not meet, that of the longest step."""
        straggler = None if self.waiting is None else self.waiting.straggler
        late = next((rank for rank in self.ranks if rank.rank == straggler), None)
        return late or max(self.ranks, key=lambda rank: rank.summary.step_us)

    def sums(self, table: str) -> NamedSums:
        return NamedSums.over([rank.sums(table) for rank in self.ranks])

    @cached_property
    def rates(self) -> Rates:
        of_ranks = [rank.rates for rank in self.ranks]
        notes = dict.fromkeys(each.note for each in of_ranks if each.note)
        return Rates(self.sums("rates"), of_ranks[0].device, "; ".join(notes))

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
        if not chosen or name not in (*ROWS, "summary", "memory"):
            tables = ", ".join((*ROWS, "summary", "memory"))
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
        from perfmodel.timeline.figures import step_figure

        chosen = next((r for r in self.ranks if rank is None or r.rank == rank), None)
        if chosen is None or not -len(chosen.steps) <= step < len(chosen.steps):
            known = ", ".join(f"{r.rank} ({len(r.steps)} steps)" for r in self.ranks)
            raise UsageError(f"no step {step} of rank {rank}; there are ranks {known}")
        shown, marks = chosen.steps[step], self.timeline.graph.marks
        mark = int(np.flatnonzero(marks.rank == chosen.rank)[shown.index])
        return step_figure(self.timeline, mark, path=shown.critical_path, idle=shown.idle)

    def __repr__(self) -> str:
        slowest = max((rank.summary.step_us for rank in self.ranks), default=0.0)
        return (
            f"Breakdown({self.source!r}: ranks {[rank.rank for rank in self.ranks]}, "
            f"mean step {human_us(slowest)}, {len(self.warnings)} warnings)"
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


def breakdown(
    trace: Trace | str | Path,
    *,
    profiler_us_per_event: float = 0.0,
) -> Breakdown:
    """Where the time of a trace, or of what `read` takes, went, as it was measured.

    Parameters:
        profiler_us_per_event: taken off the host overheads for every event that the profiler
            recorded inside them (Lin et al. use 2); nothing else is corrected.

    Returns: a `Breakdown`: per rank and step, and in the mean over ranks; `gains` is what would
    help.
    Raises: `TraceError` when there is nothing to break down (an execution trace has no times).
    Example: `perfmodel.breakdown("demo:2rank").gains`.
    """
    if not isinstance(trace, Trace):
        trace = read(trace)
    graph = build_graph(trace)
    timeline = measured(graph)
    walker, steady = PathWalker(timeline), steady_steps(timeline)
    lags, roles = DeviceLags.of(timeline, steady), step_roles(timeline)
    waiting, missing = rank_waiting(timeline, walker), unrecorded(trace, graph)
    ranks, unexplained = [], list[Unexplained]()
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        overheads = measure(rank, links, profiler_us_per_event=profiler_us_per_event)
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
        meets_us = {
            key: None if waiting is None else round(getattr(waiting, key).get(rank.rank, 0.0), 3)
            for key in ("transfer_us", "waiting_us")
        }
        about = (rank.rank, device_name(trace, graph), steps)
        ranks.append(RankBreakdown(*about, hot, meets_us))
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
        completeness(trace, graph),
    )
