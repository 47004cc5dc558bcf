"""An evaluation and a check as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from perfmodel.cli.tables import NOTHING, Times, add, counted, new_table, percent, say, show

if TYPE_CHECKING:
    from perfmodel.validate import Change, Comparison, Evaluation, Row, TraceFacts

_WHAT = {
    "step_replay": "replayed (saw the step)",
    "step_left_out": "left out (predicted)",
    "shapes": "from shapes alone",
    "model": "mode model",
    "kernels": "fitted on other rows",
    "null": "null: mean of the others",
    "null_gpu": "null: and its GPU-active time",
    "null_last": "null: the step before",
}
_OF = {"step": "step time", "gpu_active": "GPU active"}
_OF_TABLES = "kernels"
_MOST_CHANGES = 30


def show_evaluation(console: Console, found: Evaluation) -> None:
    """Per trace: what it is, and its errors."""
    for facts in found.traces:
        _show_facts(console, facts)
        _show_errors(console, found.of_trace(facts.trace))
    for name in dict.fromkeys(row.trace for row in found.rows if row.kind == _OF_TABLES):
        say(console, f"{name}: measured kernels")
        _show_errors(console, found.of_trace(name))


def _show_errors(console: Console, rows: Iterable[Row]) -> None:
    table = new_table(
        "Errors, in % of what was measured",
        *("of", "prediction", "n", "mean", "median", "worst", "bias"),
        texts=2,
    )
    for row in rows:
        sizes = (row.mape_pct, row.median_pct, row.worst_pct)
        of = _OF.get(row.name, f"{row.kind.value} {row.name}")
        what = _WHAT.get(row.kind, "left out (predicted)")
        add(table, of, what, str(row.n), *(f"{v:.2f}" for v in sizes), f"{row.bias_pct:+.2f}")
    show(console, table)
    console.print()


def _show_facts(console: Console, facts: TraceFacts) -> None:
    times = Times([facts.step_us])
    say(
        console,
        f"{facts.trace}: {facts.device}, {counted(facts.ranks, 'rank')}, "
        f"{counted(facts.steps, 'step')} of {times(facts.step_us)} {times.unit}",
    )
    covered = facts.interval_coverage_frac
    inside = NOTHING if covered is None else percent(covered, 1)
    host = percent(facts.measured_host_frac, 1)
    share = facts.modelled_frac
    modelled = "" if share is None else f"; device time from shapes: {percent(share, 1)}"
    unexplained = percent(facts.unexplained_frac, 1)
    say(
        console,
        f"measured host time in the replay: {host}; unexplained: {unexplained}; "
        f"steps within the interval: {inside}{modelled}",
    )


def show_comparison(console: Console, found: Comparison, baseline: str, *, written: bool) -> None:
    """One sentence, and what got worse."""
    from perfmodel.validate.summaries import extent, verdict

    say(console, f"{baseline}: {f'written, {extent(found)}' if written else verdict(found)}")
    show_changes(console, "Worse than the baseline", found.failing)


def show_changes(console: Console, title: str, changes: list[Change]) -> None:
    """Figures then and now; nothing where there are none."""
    from perfmodel.validate.summaries import size

    if not changes:
        return
    columns = ("trace", "kind", "name", "figure", "baseline", "now", "by")
    table = new_table(title, *columns, texts=4)
    for change in changes[:_MOST_CHANGES]:
        old, new = change.baseline, change.present
        sizes = [size(change, old), size(change, new)]
        by = change.status.value
        if old is not None and new is not None:
            by = f"{abs(new) - abs(old):+.2f}"
        add(table, change.trace, change.kind, change.name, change.figure, *sizes, by)
    show(console, table)
    if len(changes) > _MOST_CHANGES:
        say(console, f"and {counted(len(changes) - _MOST_CHANGES, 'figure')} more")
