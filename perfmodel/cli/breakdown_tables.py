"""A breakdown as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from perfmodel.cli.hotspot_tables import Shown, in_short, show_hotspots, show_rates
from perfmodel.cli.median import median_step, say_left_out, with_role
from perfmodel.cli.straggler import say_straggler
from perfmodel.cli.tables import (
    Times,
    add,
    counted,
    fitted,
    new_table,
    percent,
    say,
    show,
    source_text,
)

if TYPE_CHECKING:
    from perfmodel.attribution.breakdown import Breakdown
    from perfmodel.attribution.rank import RankBreakdown, StepBreakdown

_DEVICE_COLUMNS = {
    "GPU active": "gpu_active_us",
    "GPU idle": "gpu_idle_us",
    "compute": "compute_us",
    "comm": "comm_us",
    "exposed": "exposed_comm_us",
    "memcpy": "memcpy_us",
}
_SUMMARY_COLUMNS = {
    "step": "step_us",
    "GPU active": "gpu_active_us",
    "GPU idle": "gpu_idle_us",
    "comm": "comm_us",
    "exposed": "exposed_comm_us",
}
_MOST_THREADS = 4
_MOST_CAUSES = 12
_WIDE = 94
"""Columns of the table of overheads with its means."""


def show_breakdown(console: Console, found: Breakdown, shown: Shown) -> None:
    """The ranks in one table and what takes their time; then one rank, or those chosen, in full."""
    device = found.ranks[0].device
    say(console, f"{source_text(found.source)}: {device}, {counted(len(found.ranks), 'rank')}")
    several = len(found.ranks) > 1
    if several or found.waiting is not None:
        show(console, _ranks(console, found))
        say_straggler(console, found.waiting.to_dict() if found.waiting else None)
    if several:
        show_hotspots(console, found, shown)
    detailed = found.ranks if shown.every_rank else [found.slowest]
    for rank in detailed:
        _show_rank(console, rank)
        if not several:
            show_hotspots(console, rank, shown)
        show_rates(console, rank, shown)
        _show_overheads(console, median_step(rank.steps))
    if len(detailed) < len(found.ranks):
        say(console, f"Rank {detailed[0].rank} in detail; others: --rank N")


def _ranks(console: Console, found: Breakdown) -> Table:
    """One row per rank: means over the steps that are not warm-up."""
    columns = dict(_SUMMARY_COLUMNS) if found.ranks[0].device != "cpu" else {"step": "step_us"}
    meets = found.waiting is not None
    if meets and "comm" not in columns:
        columns["transfer"] = "transfer_us"
    if meets:
        columns["waiting"] = "waiting_us"
    main = "main idle cause" if "GPU idle" in columns else "most of the path"
    summaries = [rank.summary for rank in found.ranks]
    times = Times(summary.step_us for summary in summaries)
    rows = []
    for summary in summaries:
        figures = asdict(summary) | found.meets_us(summary.rank)
        mark = " *" if len(summaries) > 1 and summary.rank == found.slowest.rank else ""
        cause = summary.main_cause or "-"
        rows.append(
            [f"{summary.rank}{mark}", *(times(figures[key]) for key in columns.values()), cause]
        )
    marked = "" if len(rows) == 1 else "; * the others wait for it" if meets else "; * the slowest"
    title = f"Ranks, mean of {counted(summaries[0].steps, 'step')} ({times.unit}){marked}"
    return fitted(console, title, ["rank", *columns, main], rows, name=len(columns) + 1)


def _steps(console: Console, rank: RankBreakdown) -> Table:
    columns = {"time": "step_us"} | (_DEVICE_COLUMNS if rank.device != "cpu" else {})
    times = Times(step.accounting.step_us for step in rank.steps)
    rows = [
        [
            with_role(step.name, step.role),
            *(times(getattr(step.accounting, key)) for key in columns.values()),
        ]
        for step in rank.steps
    ]
    return fitted(console, f"Steps ({times.unit})", ["step", *columns], rows)


def _show_rank(console: Console, rank: RankBreakdown) -> None:
    """One rank in short, its steps, and its median step by cause."""
    console.print()
    for line in in_short(rank):
        say(console, line)
    show(console, _steps(console, rank))
    say_left_out(console, [(each.name, each.role, each.accounting.step_us) for each in rank.steps])
    step = median_step(rank.steps)
    parts = []
    if step.idle_by_cause:
        parts.append(_shares("GPU idle by cause", step.idle_by_cause, "of idle"))
    if step.critical_path_by_kind:
        parts.append(_shares("Critical path by kind", step.critical_path_by_kind, "of step"))
    if len(rank.steps) > 1:
        console.print()
        say(console, f"{step.name}, the median step")
    if parts:
        show(console, *parts)


def _shares(title: str, time_us: dict[str, float], of: str) -> Table:
    times = Times(time_us.values())
    table = new_table(f"{title} ({times.unit})", "", "time", of)
    total = sum(time_us.values())
    ordered = sorted(time_us.items(), key=lambda item: -item[1])
    for name, value in ordered[:_MOST_CAUSES]:
        add(table, name, times(value), percent(value, total))
    rest = sum(value for _, value in ordered[_MOST_CAUSES:])
    if rest:
        add(table, "others", times(rest), percent(rest, total))
    return table


_TYPES = (
    "T1 between operators; in one: T2 before launch calls, T4 the calls, T5 between, T3 after them"
)


def _show_overheads(console: Console, step: StepBreakdown) -> None:
    """Host overheads per thread and type, as recorded and without what waited for the device."""
    threads = {
        name: variants
        for name, variants in step.overheads.items()
        if any(cell["count"] for cell in variants["raw"].values())
    }
    if not threads:
        return
    wide = console.width >= _WIDE
    heads = ("mean", "median", "total") if wide else ("total",)
    columns = ("thread", "type", "count", *heads, "not waiting", *heads)
    title = "Host overheads (us): all samples, and without those that waited"
    table = new_table(title, *columns, texts=2)
    largest = sorted(threads, key=lambda name: -_total_us(threads[name]))[:_MOST_THREADS]
    for name in (name for name in threads if name in largest):
        raw, rest = threads[name]["raw"], threads[name]["no_blocking"]
        for kind, cell in raw.items():
            if cell["count"]:
                add(table, name, kind, *_figures(cell, heads), *_figures(rest.get(kind), heads))
                name = ""
    show(console, table)
    say(console, _TYPES)
    if len(threads) > len(largest):
        say(console, f"and {counted(len(threads) - len(largest), 'thread')} with less")


def _total_us(variants: dict[str, Any]) -> float:
    return float(sum(cell["total_us"] for cell in variants["raw"].values()))


def _figures(cell: dict[str, Any] | None, heads: Sequence[str]) -> list[str]:
    if not cell or not cell["count"]:
        return ["0", *("" for _ in heads)]
    return [f"{cell['count']:,}", *(f"{cell[f'{head}_us']:,.1f}" for head in heads)]
