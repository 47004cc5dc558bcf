"""A breakdown as tables for people: ranks, steps, hotspots and what operators reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.cli.console import Console, Table
from perfmodel.cli.failures import one_line
from perfmodel.cli.tables import (
    NOTHING,
    Times,
    counted,
    filled,
    fitted,
    median_step,
    named,
    percent,
    say,
    say_excluded_steps,
    say_straggler,
    source_text,
    with_role,
)
from perfmodel.units import BYTES_PER_GB, US_PER_MS, human_us

if TYPE_CHECKING:
    from perfmodel.timeline.breakdown import Breakdown
    from perfmodel.timeline.memory import MemoryTimeline
    from perfmodel.timeline.rank import RankBreakdown, StepBreakdown


CPU = "cpu"


class TableDetail(NamedTuple):
    """How much of the tables is shown."""

    rows: int = 10
    full_names: bool = False
    every_rank: bool = True
    """All ranks in detail, not only the slowest."""


def summary_lines(rank: RankBreakdown) -> Iterator[str]:
    """A rank in a few lines: step, device, communication, launch queue, memory."""
    from perfmodel.timeline.memory import shown_timelines

    summary = rank.summary
    step = human_us(summary.step_us)
    text = f"Rank {rank.rank}: {counted(summary.steps, 'step')} of {step}"
    if summary.steps > 1:
        text += " (mean)"
    if summary.gpu_active_us:
        text += f"; GPU active {percent(summary.gpu_active_us, summary.step_us)}"
    if summary.main_cause:
        whole = summary.gpu_idle_us or summary.step_us
        of = "idle" if summary.gpu_idle_us else "the path"
        share = percent(summary.main_cause_us, whole)
        text += f"; most of {of} is {named(summary.main_cause)}, {share}"
    yield text
    if summary.hidden_comm_frac is not None:
        yield (
            f"Communication: {human_us(summary.comm_us)} per step, "
            f"{percent(summary.hidden_comm_frac, 1)} of it hidden behind other work of the device"
        )
    depths = rank.queue_depths
    if depths:
        mean = sum(depth.mean_count for depth in depths) / len(depths)
        empty = sum(depth.empty_frac for depth in depths) / len(depths)
        yield (
            f"Launch queue: {mean:,.1f} operations on average, at most "
            f"{max(depth.max_count for depth in depths):,}; empty {percent(empty, 1)} of the time"
        )
    yield from map(_memory, shown_timelines(rank.memory))


def _memory(breakdown: MemoryTimeline) -> str:
    figures = breakdown.to_dict()

    def gb(key: str) -> str:
        return f"{figures[key] / BYTES_PER_GB:,.2f} GB"

    where = f" ({figures['peak_step']})" if figures["peak_step"] else ""
    reserved = "" if breakdown.is_relative else f", {gb('peak_reserved_bytes')} reserved"
    least = "above what the recording began with, " if breakdown.is_relative else ""
    return (
        f"Memory of {breakdown.device}: {least}peak {gb('peak_allocated_bytes')} allocated"
        f"{reserved}, at {figures['peak_at_us'] / US_PER_MS:,.1f} ms{where}; "
        f"first {gb('first_allocated_bytes')}, last {gb('last_allocated_bytes')}"
    )


def show_hotspots(console: Console, of: Breakdown | RankBreakdown, shown: TableDetail) -> None:
    """Kernels, operators and ranges by the time that they take."""
    name = "name" if shown.full_names else "short_name"
    kernels = of.top_kernels(shown.rows)
    if kernels:
        times = Times(row["device_us"] for row in kernels)
        rows = []
        for row in kernels:
            shares = percent(row["step_frac"], 1), percent(row["device_frac"], 1)
            figures = (*shares, _count(row["count"]), f"{row['mean_us']:,.1f}")
            rows.append((row[name], times(row["device_us"]), *figures))
        columns = ("kernel", "time", "of step", "of GPU", "count", "mean us")
        title = f"Top kernels, per step ({times.unit})"
        console.show(fitted(title, columns, rows, whole=shown.full_names))
    has_device = bool(kernels)
    operators = of.top_operators(shown.rows)
    if operators:
        heads: tuple[str, ...] = ("operator", "host", "of step", "count", "with calls")
        _show_host(console, "Top operators", heads, operators, shown, has_device)
    ranges = of.annotations(shown.rows)
    if ranges:
        heads = ("range or module", "host", "of step", "count")
        _show_host(console, "Annotated ranges and modules", heads, ranges, shown, has_device)
    _show_collectives(console, of.collectives(shown.rows))


def _show_collectives(console: Console, records: list[dict[str, Any]]) -> None:
    """Collectives by process group, with the bandwidth of those whose sizes are recorded."""
    if not records:
        return
    times = Times(row["time_us"] for row in records)
    rows = []
    for row in records:
        group, ranks = row["process_group"] or NOTHING, row["group_size"] or NOTHING
        size_gb = row["size_bytes"] and row["size_bytes"] / BYTES_PER_GB
        rates = (size_gb, row["algbw_gb_per_s"], row["busbw_gb_per_s"])
        figures = (NOTHING if figure is None else f"{figure:,.3f}" for figure in rates)
        taken = (_count(row["count"]), times(row["time_us"]), percent(row["step_frac"], 1))
        rows.append((row["collective"], group, str(ranks), *taken, *figures))
    columns = ("collective", "group", "ranks", "count", "time", "of step", "GB", "algbw", "busbw")
    console.show(
        fitted(f"Collectives, per step ({times.unit}; GB/s as nccl-tests)", columns, rows, name=0)
    )


def _show_host(
    console: Console,
    title: str,
    heads: tuple[str, ...],
    records: list[dict[str, Any]],
    shown: TableDetail,
    has_device: bool,
) -> None:
    """Host time per step, and where there is a device, the time of what was launched there."""
    times = Times(max(row["device_us"], row["host_us"]) for row in records)
    backward = [key for key in (_BACKWARD,) if any(row.get(key) for row in records)]
    short = "name" if shown.full_names else "short_name"
    rows = []
    for row in records:
        device = [times(row["device_us"]), percent(row["device_frac"], 1)] if has_device else []
        device += [times(row[key]) for key in backward]
        host = (times(row["host_us"]), percent(row["step_frac"], 1), _count(row["count"]))
        called = (times(row["host_total_us"]) for _ in heads[4:])
        rows.append((row.get(short, row["name"]), *device, *host, *called))
    columns = (heads[0], *(("GPU", "of GPU") if has_device else ()))
    columns += (*("backward" for _ in backward), *heads[1:])
    title = f"{title}, per step ({times.unit})"
    console.show(fitted(title, columns, rows, whole=shown.full_names))


def show_rates(console: Console, rank: RankBreakdown, shown: TableDetail) -> None:
    """Operators with shapes: what they reached, beside what the device could."""
    rates = rank.rates
    if rank.device == CPU:
        return
    if rates.rows:
        times = Times(row.device_us for row in rates.rows)
        rows = []
        for row in rates.rows[: shown.rows]:
            op = f"{row.operator.removeprefix('aten::')}({row.shapes})"
            tflop = f"{row.tflop_per_s:,.2f}" if row.flop else NOTHING
            roofline = NOTHING if row.roofline_frac is None else percent(row.roofline_frac, 1)
            reached = (tflop, f"{row.gb_per_s:,.0f}", roofline, row.bound_by or NOTHING)
            rows.append((op, times(row.device_us), _count(row.count), *reached))
        columns = ("operator(shapes)", "time", "count", "TFLOP/s", "GB/s", "roofline", "bound by")
        title = f"Rates by shape, per step ({times.unit})"
        console.show(fitted(title, columns, rows, whole=shown.full_names))
        peaks = f" Roofline of {rates.device}." if rates.device else ""
        say(console, f"{percent(rates.rated_frac, 1)} of the kernel time has a rate.{peaks}")
    if rates.note:
        say(console, f"Rates by shape: {rates.note}")


def _count(per_step: float) -> str:
    return f"{per_step:,.0f}" if per_step == round(per_step) else f"{per_step:,.1f}"


_BACKWARD = "backward_device_us"
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
_MAX_THREADS = 4
_MAX_CAUSES = 12
_WIDE = 94
"""Columns of the table of overheads with its means."""


def show_breakdown(console: Console, breakdown: Breakdown, shown: TableDetail) -> None:
    """The ranks in one table and what takes their time; then one rank, or those chosen, in full."""
    device = breakdown.ranks[0].device
    say(
        console,
        f"{source_text(breakdown.source)}: {device}, {counted(len(breakdown.ranks), 'rank')}",
    )
    several = len(breakdown.ranks) > 1
    if several or breakdown.waiting is not None:
        console.show(_ranks(breakdown))
        say_straggler(console, breakdown.waiting.to_dict() if breakdown.waiting else None)
    if several:
        show_hotspots(console, breakdown, shown)
    detailed = breakdown.ranks if shown.every_rank else [breakdown.slowest]
    for rank in detailed:
        _show_rank(console, rank)
        if not several:
            show_hotspots(console, rank, shown)
        show_rates(console, rank, shown)
        _show_overheads(console, median_step(rank.steps))
    if len(detailed) < len(breakdown.ranks):
        say(console, f"Rank {detailed[0].rank} in detail; others: --rank N")


def _ranks(breakdown: Breakdown) -> Table:
    """One row per rank: means over the steady steps."""
    columns = dict(_SUMMARY_COLUMNS) if breakdown.ranks[0].device != "cpu" else {"step": "step_us"}
    meets = breakdown.waiting is not None
    if meets and "comm" not in columns:
        columns["transfer"] = "transfer_us"
    if meets:
        columns["waiting"] = "waiting_us"
    main = "main idle cause" if "GPU idle" in columns else "most of the path"
    summaries = [rank.summary for rank in breakdown.ranks]
    times = Times(summary.step_us for summary in summaries)
    rows = []
    for summary in summaries:
        figures = asdict(summary) | breakdown.meets_us(summary.rank)
        mark = " *" if len(summaries) > 1 and summary.rank == breakdown.slowest.rank else ""
        cause = named(summary.main_cause or NOTHING)
        taken = (times(figures[key]) for key in columns.values())
        rows.append((f"{summary.rank}{mark}", *taken, cause))
    marked = "" if len(rows) == 1 else "; * the others wait for it" if meets else "; * the slowest"
    title = f"Ranks, mean of {counted(summaries[0].steps, 'step')} ({times.unit}){marked}"
    return fitted(title, ["rank", *columns, main], rows, name=len(columns) + 1)


def _steps(rank: RankBreakdown) -> Table:
    columns = {"time": "step_us"} | (_DEVICE_COLUMNS if rank.device != "cpu" else {})
    times = Times(step.accounting.step_us for step in rank.steps)
    rows = []
    for step in rank.steps:
        figures = (times(getattr(step.accounting, key)) for key in columns.values())
        rows.append((with_role(step.name, step.role), *figures))
    return fitted(f"Steps ({times.unit})", ["step", *columns], rows)


def _show_rank(console: Console, rank: RankBreakdown) -> None:
    """One rank in short, its steps, and its median step by cause."""
    console.print()
    for line in summary_lines(rank):
        console.print(one_line(line))
    console.show(_steps(rank))
    say_excluded_steps(
        console, [(each.name, each.role, each.accounting.step_us) for each in rank.steps]
    )
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
        console.show(*parts)


def _shares(title: str, time_us: dict[str, float], of: str) -> Table:
    times = Times(time_us.values())
    total = sum(time_us.values())
    ordered = sorted(time_us.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(value for _, value in ordered[_MAX_CAUSES:])
    shown = [(named(name), value) for name, value in ordered[:_MAX_CAUSES]]
    shown += [("others", rest)] if rest else []
    rows = [(name, times(value), percent(value, total)) for name, value in shown]
    return filled(f"{title} ({times.unit})", ("", "time", of), rows)


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
    total_us = {
        name: sum(cell["total_us"] for cell in variants["raw"].values())
        for name, variants in threads.items()
    }
    largest = sorted(threads, key=lambda name: -total_us[name])[:_MAX_THREADS]
    rows = []
    for name in (name for name in threads if name in largest):
        raw, rest = threads[name]["raw"], threads[name]["no_blocking"]
        for kind, cell in raw.items():
            if cell["count"]:
                figures = (*_figures(cell, heads), *_figures(rest.get(kind), heads))
                rows.append((name, named(kind), *figures))
                name = ""
    title = "Host overheads (us): all samples, and without those that waited"
    console.show(filled(title, columns, rows, texts=2))
    if len(threads) > len(largest):
        say(console, f"and {counted(len(threads) - len(largest), 'thread')} with less")


def _figures(cell: dict[str, Any] | None, heads: Sequence[str]) -> list[str]:
    if not cell or not cell["count"]:
        return ["0", *("" for _ in heads)]
    return [f"{cell['count']:,}", *(f"{cell[f'{head}_us']:,.1f}" for head in heads)]
