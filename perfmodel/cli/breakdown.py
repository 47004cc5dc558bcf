"""`perfmodel breakdown`: where the time of a trace went, and what would help most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.breakdown_tables import TableDetail, show_breakdown, show_gains
from perfmodel.cli.console import Console
from perfmodel.cli.options import DEFAULT_MAX_GB, max_bytes, steps_slice
from perfmodel.cli.output import (
    STDOUT,
    Output,
    check_figure,
    frame_csv,
    refuse_cautions,
    save_figure,
    working,
)
from perfmodel.cli.prediction_options import PredictionOptions
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import median_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.prediction.breakdown.job import Breakdown
    from perfmodel.prediction.gains import Gain
    from perfmodel.trace import Trace


MAX_SHOWN = 10
"""Rows of a table for people."""


def breakdown(
    trace: str | None = None,
    steps: str | None = None,
    steps_by: str | None = None,
    rank: list[int] | None = None,
    top: int | None = None,
    full_names: bool = False,
    profiler_overhead: float = 0.0,
    figure: Path | None = None,
    memory_figure: Path | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    """Where the time of a trace went, per rank and step."""
    check_figure(figure)
    check_figure(memory_figure, option="--memory-figure")
    limit = max_bytes(max_memory)
    reading: dict[str, Any] = {"strict": strict, "max_bytes": limit, "context": 1}
    reading |= {"steps": steps_slice(steps) if steps else None, "steps_by": steps_by or ""}

    from perfmodel.cli.prediction_options import DEMO_SOURCE, read_demo
    from perfmodel.prediction.breakdown.job import breakdown as break_down
    from perfmodel.prediction.breakdown.rank import MAX_ROWS
    from perfmodel.trace import read

    with working(f"reading {trace or DEMO_SOURCE}"):
        if trace is None:
            content, _ = read_demo(**reading)
        else:
            content = read(trace, **reading)
    with working(f"breaking {trace or DEMO_SOURCE} down"):
        whole = break_down(content, profiler_us_per_event=profiler_overhead)
        selected = _selected(whole, content.chosen, rank)
        options = PredictionOptions(steps=steps, steps_by=steps_by, max_memory=max_memory)
        helps, lost = _gains(whole, content, trace, options)
    if strict:
        refuse_cautions(whole.source, whole.cautions)
    save_figure(figure, lambda: _step_figure(whole, selected))
    save_figure(memory_figure, lambda: _memory_figure(selected))

    def table(console: Console) -> None:
        show_breakdown(console, selected, TableDetail(top or MAX_SHOWN, full_names, bool(rank)))
        show_gains(console, helps, next(iter(lost), whole.unrecorded))

    from perfmodel.prediction.breakdown.completeness import completeness_line

    def answer() -> dict[str, Any]:
        found = selected.to_dict(top or MAX_ROWS)
        return found | {
            "gains": [gain.to_dict() for gain in helps],
            "warnings": [*found["warnings"], *lost],
        }

    target.write(
        answer=answer,
        csv=lambda: frame_csv(selected.to_frame()),
        table=table,
        warnings=[*selected.warnings, *selected.missing, *lost],
        cautions=selected.cautions,
        first=completeness_line(selected.gaps),
    )


def _gains(
    listed: Breakdown, content: Trace, trace: str | None, options: PredictionOptions
) -> tuple[list[Gain], list[str]]:
    """What would help the job most, over the chosen steps of all ranks; or why that is missing."""
    from perfmodel.prediction.breakdown.rank import UNFIT
    from perfmodel.prediction.gains import gains
    from perfmodel.reporting.written import predict_words

    graph = listed.timeline.graph
    try:
        found = gains(
            graph,
            graph.nodes_.duration_us,
            predict_words(graph, trace, reading=options.reading_words()),
            straggler=None if listed.waiting is None else listed.waiting.to_dict(),
            steps=content.chosen,
            periods=listed.ranks[0].steps[0].lags.periods,
        )
    except UNFIT as error:
        return [], [f"what would help most could not be worked out: {error}"]
    return found, []


def _selected(content: Breakdown, steps: slice, ranks: list[int] | None) -> Breakdown:
    """What `--steps` and `--rank` ask for. Raises `UsageError` where there is none."""
    known = [rank.rank for rank in content.ranks]
    for number in ranks or ():
        if number not in known:
            raise UsageError(f"--rank {number}: {content.source} has {', '.join(map(str, known))}")
    kept = [rank.of_steps(steps) for rank in content.ranks if not ranks or rank.rank in ranks]
    if not all(rank.steps for rank in kept):
        raise UsageError(f"--steps matches none of the {len(content.ranks[0].steps)} steps")
    return replace(content, ranks=kept)


def _step_figure(whole: Breakdown, content: Breakdown) -> Figure:
    from perfmodel.timeline.figures import step_figure

    shown = median_step(content.ranks[0].steps)
    every = [step for rank in whole.ranks for step in rank.steps]
    mark = next(row for row, step in enumerate(every) if step is shown)
    return step_figure(whole.timeline, mark, path=shown.critical_path, idle=shown.idle)


def _memory_figure(content: Breakdown) -> Figure:
    from perfmodel.timeline.memory import memory_figure, shown_timelines

    rank = content.ranks[0]
    if not rank.memory:
        raise UsageError(
            f"--memory-figure: {content.source} records no allocations: "
            "profile with profile_memory=True"
        )
    title = f"Memory of rank {rank.rank}"
    return memory_figure(shown_timelines(rank.memory), rank.hot.links.steps, title)
