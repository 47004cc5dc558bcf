"""A breakdown as tables for people: ranks, steps, hot spots and what operators reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.units import BYTES_PER_GB, US_PER_MS, human_us
from perfmodel.cli.console import Console
from perfmodel.reporting.tables import (
    Column,
    Table,
    Times,
    columns,
    counted,
    excluded_steps,
    median_step,
    named,
    parts_table,
    percent,
    source_text,
    step_name,
    straggler_text,
)

if TYPE_CHECKING:
    from perfmodel.prediction.breakdown.job import Breakdown
    from perfmodel.prediction.breakdown.rank import RankBreakdown, StepBreakdown
    from perfmodel.prediction.gains import Gain
    from perfmodel.timeline.memory import MemoryTimeline


CPU = "cpu"
MAX_THREADS = 4
_KERNELS = (
    "device_us=time:us;step_frac=of step:share;device_frac=of GPU:share;count:count;"
    "mean_us=mean us:,.1f"
)
_DEVICE = "device_us=GPU:us;device_frac=of GPU:share;"
_BACKWARD = "backward_device_us"
_HOST = "host_us=host:us;step_frac=of step:share;count:count"
_COLLECTIVES = columns(
    "collective;process_group=group;group_size=ranks:,d;count:count;time_us=time:us;"
    "step_frac=of step:share;size_gb=GB:,.3f;algbw_gb_per_s=algbw:,.3f;busbw_gb_per_s=busbw:,.3f"
)
_RATES = columns(
    "op=operator(shapes);device_us=time:us;count:count;rate=TFLOP/s:,.2f;gb_per_s=GB/s:,.0f;"
    "roofline_frac=roofline:share;bound_by=bound by"
)
_RANKS = columns(
    "step_us=step:us;gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;comm_us=comm:us;"
    "exposed_comm_us=exposed:us"
)
_STEPS = columns(
    "step;step_us=time:us;gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;"
    "compute_us=compute:us;comm_us=comm:us;exposed_comm_us=exposed:us;memcpy_us=memcpy:us"
)
_OVERHEADS = columns(
    "thread;type;count:,d!;mean_us=mean:,.1f;median_us=median:,.1f;total_us=total:,.1f!;"
    "free_count=not blocked:,d!;free_mean_us=mean:,.1f;free_median_us=median:,.1f;"
    "free_total_us=total:,.1f!"
)


class TableDetail(NamedTuple):
    """How much of the tables is shown."""

    rows: int = 10
    full_names: bool = False
    every_rank: bool = True
    """All ranks in detail, not only the slowest."""


def show_breakdown(console: Console, breakdown: Breakdown, shown: TableDetail) -> None:
    """The ranks in one table and what takes their time; then one rank, or those chosen, in full."""
    ranks = counted(len(breakdown.ranks), "rank")
    console.say(f"{source_text(breakdown.source)}: {breakdown.ranks[0].device}, {ranks}")
    several = len(breakdown.ranks) > 1
    if several or breakdown.waiting is not None:
        console.show(_ranks(breakdown))
        console.say(straggler_text(breakdown.waiting.to_dict() if breakdown.waiting else None))
    if several:
        show_hotspots(console, breakdown, shown)
    detailed = breakdown.ranks if shown.every_rank else [breakdown.slowest]
    for rank in detailed:
        _show_rank(console, rank)
        if not several:
            show_hotspots(console, rank, shown)
        _show_rates(console, rank, shown)
        _show_overheads(console, median_step(rank.steps))
    if len(detailed) < len(breakdown.ranks):
        console.say(f"Rank {detailed[0].rank} in detail; others: --rank N")


def _ranks(breakdown: Breakdown) -> Table:
    """One row per rank: means over the steady steps."""
    has_device, meets = breakdown.ranks[0].device != CPU, breakdown.waiting is not None
    heads = [Column("rank", "rank"), *(_RANKS if has_device else _RANKS[:1])]
    if meets:
        heads += [] if has_device else columns("transfer_us=transfer:us")
        heads += columns("waiting_us=waiting:us")
    records = []
    for summary in (rank.summary for rank in breakdown.ranks):
        is_slowest = len(breakdown.ranks) > 1 and summary.rank == breakdown.slowest.rank
        rank = f"{summary.rank}{' *' if is_slowest else ''}"
        cause = named(summary.main_cause) if summary.main_cause else None
        record = asdict(summary) | breakdown.meets_us(summary.rank)
        records.append(record | {"rank": rank, "cause": cause})
    marked = "the others wait for it" if meets else "the slowest"
    marked = f"; * {marked}" if len(records) > 1 else ""
    cause = "main idle cause" if has_device else "most of the path"
    title = f"Ranks, mean of {counted(breakdown.ranks[0].summary.steps, 'step')}{marked}"
    return Table(title, [*heads, Column("cause", cause, keep=True)], records)


def _show_rank(console: Console, rank: RankBreakdown) -> None:
    """One rank in short, its steps, and its median step by cause."""
    console.print()
    for line in summary_lines(rank):
        console.say(line)
    heads = _STEPS if rank.device != CPU else _STEPS[:2]
    records = [
        asdict(step.accounting) | {"step": step_name(step.name, step.role)} for step in rank.steps
    ]
    console.show(Table("Steps", heads, records))
    console.say(excluded_steps([(s.name, s.role, s.accounting.step_us) for s in rank.steps]))
    step = median_step(rank.steps)
    if len(rank.steps) > 1:
        console.print()
        console.say(f"{step.name}, the median step")
    for title, time_us, share in (
        ("GPU idle by cause", step.idle_by_cause, "of idle"),
        ("Critical path by kind", step.critical_path_by_kind, "of step"),
    ):
        if time_us:
            console.show(parts_table(title, time_us, share))


def summary_lines(rank: RankBreakdown) -> Iterator[str]:
    """A rank in a few lines: step, device, communication, memory."""
    from perfmodel.timeline.memory import shown_timelines

    summary = rank.summary
    text = f"Rank {rank.rank}: {counted(summary.steps, 'step')} of {human_us(summary.step_us)}"
    if summary.steps > 1:
        text += " (mean)"
    if summary.gpu_active_us:
        text += f"; GPU active {percent(summary.gpu_active_us, summary.step_us)}"
    if summary.main_cause:
        whole = summary.gpu_idle_us or summary.step_us
        of = "GPU idle" if summary.gpu_idle_us else "the critical path"
        share = percent(summary.main_cause_us, whole)
        text += f"; most of {of} is {named(summary.main_cause)}, {share}"
    yield text
    if summary.hidden_comm_frac is not None:
        yield (
            f"Communication: {human_us(summary.comm_us)} per step, "
            f"{percent(summary.hidden_comm_frac, 1)} of it hidden behind other work of the device"
        )
    yield from map(_memory, shown_timelines(rank.memory))


def _memory(timeline: MemoryTimeline) -> str:
    found = timeline.to_dict()
    gb = {key: f"{found[key] / BYTES_PER_GB:,.2f} GB" for key in found if key in _MEMORY_KEYS}
    where = f" ({found['peak_step']})" if found["peak_step"] else ""
    reserved = "" if timeline.is_relative else f", {gb['peak_reserved_bytes']} reserved"
    least = "above what the recording began with, " if timeline.is_relative else ""
    return (
        f"Memory of {timeline.device}: {least}peak {gb['peak_allocated_bytes']} allocated"
        f"{reserved}, at {found['peak_at_us'] / US_PER_MS:,.1f} ms{where}; "
        f"first {gb['first_allocated_bytes']}, last {gb['last_allocated_bytes']}"
    )


_MEMORY_KEYS = (
    *("peak_allocated_bytes", "peak_reserved_bytes"),
    *("first_allocated_bytes", "last_allocated_bytes"),
)


def show_hotspots(console: Console, of: Breakdown | RankBreakdown, shown: TableDetail) -> None:
    """Kernels, operators, ranges and collectives by the time that they take."""
    name = "name" if shown.full_names else "short_name"

    def show(title: str, heads: Sequence[Column], records: Sequence[Mapping[str, Any]]) -> None:
        if records:
            title = f"{title}, per step"
            console.show(Table(title, heads, records, full_names=shown.full_names))

    kernels = of.top_kernels(shown.rows)
    show("Top kernels", columns(f"{name}=kernel;{_KERNELS}"), kernels)
    device = _DEVICE if kernels else ""
    operators = [{"short_name": row["name"]} | row for row in of.top_operators(shown.rows)]
    backward = f"{_BACKWARD}=backward:us;" if any(row.get(_BACKWARD) for row in operators) else ""
    heads = columns(f"{name}=operator;{device}{backward}{_HOST};host_total_us=with calls:us")
    show("Top operators", heads, operators)
    ranges = [{"short_name": row["name"]} | row for row in of.annotations(shown.rows)]
    show("Annotated ranges and modules", columns(f"{name}=range or module;{device}{_HOST}"), ranges)
    collectives = of.collectives(shown.rows)
    for row in collectives:
        row["size_gb"] = row["size_bytes"] and row["size_bytes"] / BYTES_PER_GB
    show("Collectives (GB/s as nccl-tests)", _COLLECTIVES, collectives)


def _show_rates(console: Console, rank: RankBreakdown, shown: TableDetail) -> None:
    """What operators with shapes reached, against what the device could."""
    rates = rank.rates
    if rank.device == CPU:
        return
    if rates.rows:
        records = [
            row
            | {
                "op": f"{row['operator'].removeprefix('aten::')}({row['shapes']})",
                "rate": row["tflop_per_s"] if row["flop"] else None,
            }
            for row in rates.to_dict(shown.rows)["rows"]
        ]
        title = "Rates by shape, per step"
        console.show(Table(title, _RATES, records, full_names=shown.full_names))
        peaks = f" Roofline of {rates.device}." if rates.device else ""
        console.say(f"{percent(rates.rated_frac, 1)} of the kernel time has a rate.{peaks}")
    if rates.note:
        console.say(f"Rates by shape: {rates.note}")


def _show_overheads(console: Console, step: StepBreakdown) -> None:
    """Host overheads per thread and type, as recorded and without ops that blocked."""
    total_us = {
        thread: sum(cell["total_us"] for cell in variants["raw"].values())
        for thread, variants in step.overheads.items()
        if any(cell["count"] for cell in variants["raw"].values())
    }
    if not total_us:
        return
    largest = sorted(total_us, key=lambda thread: -total_us[thread])[:MAX_THREADS]
    records: list[Mapping[str, Any]] = []
    for thread in (each for each in total_us if each in largest):
        raw, free = (step.overheads[thread][key] for key in ("raw", "no_blocking"))
        for kind, cell in raw.items():
            if cell["count"]:
                rest = free.get(kind) or {"count": 0}
                rest = {f"free_{key}": value for key, value in rest.items() if rest["count"]}
                records.append({"thread": thread, "type": named(kind), **cell, **rest})
                thread = ""
    title = "Host overhead per op (us); right: without ops that blocked"
    console.show(Table(title, _OVERHEADS, records))
    if len(total_us) > len(largest):
        console.say(f"and {counted(len(total_us) - len(largest), 'thread')} with less")


def show_gains(console: Console, listed: Sequence[Gain], unrecorded: str = "") -> None:
    """The list, each line with its command below; or why there is none."""
    console.print()
    if not listed:
        why = unrecorded or "no what-if alone gains more than 1 % of the step."
        console.say(f"Largest gains: {why}")
        return
    console.say("Largest gains (simulated one at a time)", style="bold")
    times = Times(gain.gain_us for gain in listed)
    for gain in listed:
        saved = f"-{times(gain.gain_us)} {times.unit}, {percent(gain.gain_frac, 1)}"
        console.say(f"{gain.name}: {saved}: {gain.advice}")
        console.say(gain.command, whole=True, before="    ")
