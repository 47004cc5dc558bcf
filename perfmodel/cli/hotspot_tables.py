"""What takes the time of a rank or a job, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from perfmodel.cli.tables import NOTHING, Times, counted, fitted, percent, say, show
from perfmodel.units import BYTES_PER_GB, US_PER_MS, human_us

if TYPE_CHECKING:
    from perfmodel.attribution.allocated import MemoryTimeline
    from perfmodel.attribution.breakdown import Breakdown
    from perfmodel.attribution.rank import RankBreakdown

CPU = "cpu"


class Shown(NamedTuple):
    """How much of the tables is shown."""

    rows: int = 10
    full_names: bool = False
    every_rank: bool = True
    """All ranks in detail, not only the slowest."""


def in_short(rank: RankBreakdown) -> Iterator[str]:
    """A rank in a few lines: step, device, communication, launch queue, memory."""
    from perfmodel.attribution.allocated import worth_showing

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
        text += f"; most of {of} is {summary.main_cause}, {percent(summary.main_cause_us, whole)}"
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
            f"Launch queue: {mean:,.1f} operations in the mean, at most "
            f"{max(depth.max_count for depth in depths):,}; empty {percent(empty, 1)} of the time"
        )
    yield from map(_memory, worth_showing(rank.memory))


def _memory(found: MemoryTimeline) -> str:
    told = found.to_dict()

    def gb(key: str) -> str:
        return f"{told[key] / BYTES_PER_GB:,.2f} GB"

    where = f" ({told['peak_step']})" if told["peak_step"] else ""
    reserved = "" if found.is_relative else f", {gb('peak_reserved_bytes')} reserved"
    least = "above what the recording began with, " if found.is_relative else ""
    return (
        f"Memory of {found.device}: {least}peak {gb('peak_allocated_bytes')} allocated{reserved}, "
        f"at {told['peak_at_us'] / US_PER_MS:,.1f} ms{where}; "
        f"first {gb('first_allocated_bytes')}, last {gb('last_allocated_bytes')}"
    )


def show_hotspots(console: Console, of: Breakdown | RankBreakdown, shown: Shown) -> None:
    """Kernels, operators and ranges by the time that they take."""
    name = "name" if shown.full_names else "short_name"
    kernels = of.top_kernels(shown.rows)
    if kernels:
        times = Times(row["device_us"] for row in kernels)
        rows = [
            [
                row[name],
                times(row["device_us"]),
                percent(row["step_frac"], 1),
                percent(row["device_frac"], 1),
                _count(row["count"]),
                f"{row['mean_us']:,.1f}",
            ]
            for row in kernels
        ]
        columns = ("kernel", "time", "of step", "of GPU", "count", "mean us")
        title = f"Top kernels, per step ({times.unit})"
        show(console, fitted(console, title, columns, rows, whole=shown.full_names))
    has_device = bool(kernels)
    operators = of.top_operators(shown.rows)
    if operators:
        heads: tuple[str, ...] = ("operator", "host", "of step", "count", "with calls")
        _show_host(console, "Top operators", heads, operators, shown, has_device)
    ranges = of.annotations(shown.rows)
    if ranges:
        heads = ("range or module", "host", "of step", "count")
        _show_host(console, "Annotated ranges and modules", heads, ranges, shown, has_device)


def _show_host(
    console: Console,
    title: str,
    heads: tuple[str, ...],
    records: list[dict[str, Any]],
    shown: Shown,
    has_device: bool,
) -> None:
    """Host time per step, and where there is a device, the time of what was launched there."""
    times = Times(max(row["device_us"], row["host_us"]) for row in records)
    short = "name" if shown.full_names else "short_name"
    columns = {heads[0]: [row.get(short, row["name"]) for row in records]}
    if has_device:
        columns["GPU"] = [times(row["device_us"]) for row in records]
        columns["of GPU"] = [percent(row["device_frac"], 1) for row in records]
    columns[heads[1]] = [times(row["host_us"]) for row in records]
    columns[heads[2]] = [percent(row["step_frac"], 1) for row in records]
    columns[heads[3]] = [_count(row["count"]) for row in records]
    for head in heads[4:]:
        columns[head] = [times(row["host_total_us"]) for row in records]
    rows = list(map(list, zip(*columns.values(), strict=True)))
    title = f"{title}, per step ({times.unit})"
    show(console, fitted(console, title, list(columns), rows, whole=shown.full_names))


def show_rates(console: Console, rank: RankBreakdown, shown: Shown) -> None:
    """Operators with shapes: what they reached, beside what the device could."""
    found = rank.rates
    if rank.device == CPU:
        return
    if found.rows:
        times = Times(row.device_us for row in found.rows)
        rows = [
            [
                f"{row.operator.removeprefix('aten::')}({row.shapes})",
                times(row.device_us),
                _count(row.count),
                f"{row.tflop_per_s:,.2f}" if row.flop else NOTHING,
                f"{row.gb_per_s:,.0f}",
                NOTHING if row.roofline_frac is None else percent(row.roofline_frac, 1),
                row.bound_by or NOTHING,
            ]
            for row in found.rows[: shown.rows]
        ]
        columns = ("operator(shapes)", "time", "count", "TFLOP/s", "GB/s", "roofline", "bound by")
        title = f"Rates by shape, per step ({times.unit})"
        show(console, fitted(console, title, columns, rows, whole=shown.full_names))
        peaks = f" Roofline of {found.device}." if found.device else ""
        say(console, f"{percent(found.rated_frac, 1)} of the kernel time has a rate.{peaks}")
    if found.note:
        say(console, f"Rates by shape: {found.note}")


def _count(per_step: float) -> str:
    return f"{per_step:,.0f}" if per_step == round(per_step) else f"{per_step:,.1f}"
