"""Errors of evaluations, checks and fits as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.console import Console
from perfmodel.cli.tables import NOTHING, Times, add, counted, named, new_table, percent, say

if TYPE_CHECKING:
    from perfmodel.calibrate.device import DeviceFit
    from perfmodel.calibrate.kernel_data import KernelErrors
    from perfmodel.calibrate.kernel_report import Compared
    from perfmodel.evaluation import Change, Comparison, Evaluation, Row, TraceFacts


_KERNEL_COLUMNS = ("op", "device", "dtype", "n", "MAPE", "GMAE", "median")


def show_kernel_errors(console: Console, rows: Sequence[KernelErrors]) -> None:
    """One line per op, device and dtype."""
    title = "Predicted against measured, errors in percent"
    table = new_table(title, *_KERNEL_COLUMNS, "bias", "within 90 %", "width", texts=3)
    for row in rows:
        last = f"{row.bias_pct:.1f}", f"{row.coverage_frac:.2f}", f"{row.width_frac:.2f}"
        add(table, *_cells(row), *last)
    console.show(table)


def show_kernel_comparison(console: Console, rows: Sequence[Compared], title: str) -> None:
    """One line per op and device, with what the roofline and plain trees have."""
    table = new_table(title, *_KERNEL_COLUMNS, "within 90 %", "roofline", "plain trees", texts=3)
    for row in rows:
        beside = f"{row.roofline_pct:.1f}", f"{row.plain_pct:.1f}"
        last = f"{row.errors.coverage_frac:.2f}", *beside
        add(table, *_cells(row.errors), *last)
    console.show(table)


def _cells(row: KernelErrors) -> tuple[str, ...]:
    figures = (row.mape_pct, row.gmae_pct, row.median_pct)
    return (row.op, row.device, row.dtype, f"{row.n:,}", *(f"{value:.1f}" for value in figures))


def show_device_fit(console: Console, fit: DeviceFit, output: Path) -> None:
    """Errors on the half that the fit had not seen, per family and kind of measurement."""
    rows = (*fit.errors, *([fit.steps] if fit.steps else []))
    if not rows:
        say(console, f"{output}: {fit.device.name}")
        return
    say(console, f"{output}: {fit.device.name}, fitted to all rows")
    titles = ("n", "median %", "p90 %", "bias %", "spread %")
    table = new_table("Errors on a half held out", "family", "measured", *titles, texts=2)
    for it in rows:
        add(
            table,
            it.family,
            it.kind,
            str(it.n),
            f"{it.median_pct:.1f}",
            f"{it.p90_pct:.1f}",
            f"{it.bias_pct:+.1f}",
            f"{it.spread_pct:.1f}",
        )
    console.show(table)


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
_MAX_CHANGES = 30


def show_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Per trace: what it is, and its errors."""
    for facts in evaluation.traces:
        _show_facts(console, facts)
        _show_errors(console, evaluation.of_trace(facts.trace))
    for name in dict.fromkeys(row.trace for row in evaluation.rows if row.kind == _OF_TABLES):
        say(console, f"{name}: measured kernels")
        _show_errors(console, evaluation.of_trace(name))


def _show_errors(console: Console, rows: Iterable[Row]) -> None:
    table = new_table(
        "Errors, in % of what was measured",
        *("of", "prediction", "n", "mean", "median", "worst", "bias"),
        texts=2,
    )
    for row in rows:
        sizes = (row.mape_pct, row.median_pct, row.worst_pct)
        of = _OF.get(row.name, f"{row.kind.value} {named(row.name)}")
        what = _WHAT.get(row.kind, "left out (predicted)")
        add(table, of, what, str(row.n), *(f"{v:.2f}" for v in sizes), f"{row.bias_pct:+.2f}")
    console.show(table)
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


def show_baseline_comparison(
    console: Console, comparison: Comparison, baseline: str, *, written: bool
) -> None:
    """One sentence, and what got worse."""
    from perfmodel.evaluation.baseline import extent, verdict

    say(
        console,
        f"{baseline}: {f'written, {extent(comparison)}' if written else verdict(comparison)}",
    )
    show_changes(console, "Worse than the baseline", comparison.failing)


def show_changes(console: Console, title: str, changes: list[Change]) -> None:
    """Figures then and now; nothing where there are none."""
    from perfmodel.evaluation.baseline import figure_text

    if not changes:
        return
    columns = ("trace", "kind", "name", "figure", "baseline", "now", "by")
    table = new_table(title, *columns, texts=4)
    for change in changes[:_MAX_CHANGES]:
        old, new = change.baseline, change.present
        sizes = [figure_text(change, old), figure_text(change, new)]
        by = change.status.value
        if old is not None and new is not None:
            by = f"{abs(new) - abs(old):+.2f}"
        add(table, change.trace, change.kind, change.name, change.figure, *sizes, by)
    console.show(table)
    if len(changes) > _MAX_CHANGES:
        say(console, f"and {counted(len(changes) - _MAX_CHANGES, 'figure')} more")
