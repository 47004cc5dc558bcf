"""A breakdown as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from perfmodel.cli.median import median_step, say_left_out, with_role
from perfmodel.cli.straggler import say_straggler
from perfmodel.cli.tables import Times, add, counted, new_table, percent, say, show, source_text

if TYPE_CHECKING:
    from perfmodel.attribution.breakdown import Breakdown, RankBreakdown, StepBreakdown

_DEVICE_COLUMNS = {
    "GPU active": "gpu_active_us",
    "GPU idle": "gpu_idle_us",
    "compute": "compute_us",
    "comm": "comm_us",
    "exposed": "exposed_comm_us",
    "memcpy": "memcpy_us",
}
_MOST_THREADS = 4
_MOST_CAUSES = 12


def show_breakdown(console: Console, found: Breakdown) -> None:
    """The steps of all ranks, then for each rank its median step in detail."""
    device = found.ranks[0].device
    say(console, f"{source_text(found.source)}: {device}, {counted(len(found.ranks), 'rank')}")
    show(console, _steps(found, has_device=device != "cpu"))
    for rank in found.ranks[:1]:
        of_steps = [(step.name, step.role, step.accounting.step_us) for step in rank.steps]
        say_left_out(console, of_steps)
    if found.waiting is not None:
        show(console, _meets(found))
        say_straggler(console, found.waiting.to_dict())
    for rank in found.ranks:
        _show_rank(console, rank)


def _meets(found: Breakdown) -> Table:
    figures = {rank.rank: found.meets_us(rank.rank) for rank in found.ranks}
    times = Times(us for figure in figures.values() for us in figure.values() if us is not None)
    table = new_table(f"Where ranks meet, per step ({times.unit})", "rank", "transfer", "waiting")
    for rank, figure in figures.items():
        add(table, str(rank), *map(times, figure.values()))
    return table


def _steps(found: Breakdown, *, has_device: bool) -> Table:
    columns = _DEVICE_COLUMNS if has_device else {}
    times = Times(step.accounting.step_us for rank in found.ranks for step in rank.steps)
    table = new_table(f"Steps ({times.unit})", "rank", "step", "time", *columns, texts=2)
    for rank in found.ranks:
        for step in rank.steps:
            figures = [getattr(step.accounting, key) for key in columns.values()]
            cells = map(times, [step.accounting.step_us, *figures])
            add(table, str(rank.rank), with_role(step.name, step.role), *cells)
    return table


def _show_rank(console: Console, rank: RankBreakdown) -> None:
    step = median_step(rank.steps)
    console.print()
    is_median = " (the median step)" if len(rank.steps) > 1 else ""
    say(console, f"Rank {rank.rank}, {step.name}{is_median}")
    parts = []
    if step.idle_by_cause:
        parts.append(_shares("GPU idle by cause", step.idle_by_cause, "of idle"))
    if step.critical_path_by_kind:
        parts.append(_shares("Critical path by kind", step.critical_path_by_kind, "of step"))
    if parts:
        show(console, *parts)
    _show_overheads(console, step)


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
    table = new_table(
        "Host overheads (us): all samples, and without those that waited",
        *("thread", "type", "count", "mean", "median", "total"),
        *("not waiting", "mean", "median", "total"),
        texts=2,
    )
    largest = sorted(threads, key=lambda name: -_total_us(threads[name]))[:_MOST_THREADS]
    for name in (name for name in threads if name in largest):
        raw, rest = threads[name]["raw"], threads[name]["no_blocking"]
        for kind, cell in raw.items():
            if cell["count"]:
                add(table, name, kind, *_figures(cell), *_figures(rest.get(kind)))
                name = ""
    show(console, table)
    say(console, _TYPES)
    if len(threads) > len(largest):
        say(console, f"and {counted(len(threads) - len(largest), 'thread')} with less")


def _total_us(variants: dict[str, Any]) -> float:
    return float(sum(cell["total_us"] for cell in variants["raw"].values()))


def _figures(cell: dict[str, Any] | None) -> list[str]:
    if not cell or not cell["count"]:
        return ["0", "", "", ""]
    figures = [cell[key] for key in ("mean_us", "median_us", "total_us")]
    return [f"{cell['count']:,}", *(f"{value:,.1f}" for value in figures)]
