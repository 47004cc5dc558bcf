"""Errors of evaluations, checks and fits as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.console import Console
from perfmodel.cli.tables import NOTHING, Times, counted, filled, named, percent, say

if TYPE_CHECKING:
    from perfmodel.calibrate.device import DeviceFit
    from perfmodel.calibrate.kernel_data import KernelErrors
    from perfmodel.calibrate.kernel_report import Compared
    from perfmodel.evaluation.baseline import Change, Comparison
    from perfmodel.evaluation.kernels import KernelEvaluation
    from perfmodel.evaluation.results import Evaluation, Row, TraceFacts


_KERNEL_COLUMNS = ("op", "device", "dtype", "n", "MAPE", "GMAE", "median")


def show_kernel_errors(console: Console, evaluation: KernelEvaluation) -> None:
    """One line per op, device and dtype."""
    rows = [
        (*_cells(r), f"{r.bias_pct:.1f}", f"{r.coverage_frac:.2f}", f"{r.width_frac:.2f}")
        for r in evaluation.rows
    ]
    heads = (*_KERNEL_COLUMNS, "bias", "within 90 %", "width")
    console.show(filled("Predicted against measured, errors in percent", heads, rows, texts=3))


def show_kernel_comparison(console: Console, rows: Sequence[Compared], title: str) -> None:
    """One line per op and device, with what the roofline and plain trees have."""
    cells = []
    for row in rows:
        beside = (f"{row.roofline_pct:.1f}", f"{row.plain_pct:.1f}")
        cells.append((*_cells(row.errors), f"{row.errors.coverage_frac:.2f}", *beside))
    heads = (*_KERNEL_COLUMNS, "within 90 %", "roofline", "plain trees")
    console.show(filled(title, heads, cells, texts=3))


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
    titles = ("family", "measured", "n", "median %", "p90 %", "bias %", "spread %")
    cells = []
    for it in rows:
        figures = (f"{it.median_pct:.1f}", f"{it.p90_pct:.1f}", f"{it.bias_pct:+.1f}")
        cells.append((it.family, it.kind, str(it.n), *figures, f"{it.spread_pct:.1f}"))
    console.show(filled("Errors on a half held out", titles, cells, texts=2))


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
    cells = []
    for row in rows:
        sizes = (f"{value:.2f}" for value in (row.mape_pct, row.median_pct, row.worst_pct))
        of = _OF.get(row.name, f"{row.kind.value} {named(row.name)}")
        what = _WHAT.get(row.kind, "left out (predicted)")
        cells.append((of, what, str(row.n), *sizes, f"{row.bias_pct:+.2f}"))
    heads = ("of", "prediction", "n", "mean", "median", "worst", "bias")
    console.show(filled("Errors, in % of what was measured", heads, cells, texts=2))
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
    rows = []
    for change in changes[:_MAX_CHANGES]:
        old, new = change.baseline, change.present
        by = change.status.value
        if old is not None and new is not None:
            by = f"{abs(new) - abs(old):+.2f}"
        sizes = (figure_text(change, old), figure_text(change, new), by)
        rows.append((change.trace, change.kind, change.name, change.figure, *sizes))
    columns = ("trace", "kind", "name", "figure", "baseline", "now", "by")
    console.show(filled(title, columns, rows, texts=4))
    if len(changes) > _MAX_CHANGES:
        say(console, f"and {counted(len(changes) - _MAX_CHANGES, 'figure')} more")
