"""`perfmodel breakdown`: where the time of a trace went, and what would help most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.console import LINE
from perfmodel.cli.options import DEFAULT_MAX_GB
from perfmodel.cli.output import STDOUT, Output, check_figure, refuse_cautions, save_figure, working
from perfmodel.cli.prediction_options import PredictionOptions
from perfmodel.errors import UsageError
from perfmodel.reporting import tables
from perfmodel.reporting.broken_down import BreakdownPage, about, gain_blocks
from perfmodel.reporting.tables import Block, Verdict

if TYPE_CHECKING:
    from perfmodel.prediction.breakdown.job import Breakdown


def breakdown(
    trace: str | None = None,
    steps: str | None = None,
    steps_by: str | None = None,
    rank: list[int] | None = None,
    top: int | None = None,
    figure: Path | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    check_figure(figure)
    options = PredictionOptions(
        steps=steps, steps_by=steps_by, strict=strict, max_memory=max_memory
    )

    from perfmodel.prediction.breakdown.completeness import incomplete
    from perfmodel.prediction.breakdown.job import breakdown as break_down
    from perfmodel.prediction.breakdown.tables import MAX_ROWS
    from perfmodel.prediction.gains import predict_words

    content = options.read(trace, context=1)
    with working(f"breaking {content.source} down"):
        whole = break_down(content)
        selected = _selected(whole, content.chosen, rank)
        words = predict_words(whole.timeline.graph, trace, options=options.reading_words())
        helps, lost = whole.helps(words, content.chosen)
    if strict:
        refuse_cautions(whole.source, whole.cautions)
    shown = selected.ranks[0]  # `whole` has the steps that were not asked for, too
    step = tables.median_step(shown.steps)
    save_figure(figure, lambda: whole.plot(shown.rank, step.index))

    def blocks() -> Iterator[Block]:
        page = BreakdownPage(selected, top or tables.MAX_SHOWN)
        detailed = [*selected.ranks] if rank else [selected.slowest]
        yield about(whole)
        yield Verdict(page.verdict(detailed[0], helps))
        yield from page.ranks()
        if len(detailed) < len(selected.ranks):
            rest = "causes and details; others: --rank N"
            yield (f"Below, of rank {detailed[0].rank}: {rest}")
        for each in detailed:
            yield from page.causes(each)
        yield from gain_blocks(helps, next(iter(lost), whole.unrecorded))
        yield from page.hotspots()
        if not LINE.get().notes:
            yield "\nEach step, rates by shape and host overheads: -v"
            return
        for each in detailed:
            yield from page.details(each)

    target.write(
        lambda: selected.to_dict(top or MAX_ROWS, (helps, lost)),
        selected.to_frame,
        blocks,
        warnings=[*selected.warnings, *lost],
        cautions=[*incomplete(selected.gaps), *selected.cautions],
    )


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
