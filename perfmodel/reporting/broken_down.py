"""A breakdown as lines and tables: terminal and page show the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import BYTES_PER_GB, US_PER_MS, counted, human_us
from perfmodel.plot.names import named
from perfmodel.reporting import tables
from perfmodel.reporting.tables import Block, Command, Heading, Table

if TYPE_CHECKING:
    from perfmodel.prediction.breakdown.job import Breakdown, RankBreakdown, StepBreakdown
    from perfmodel.prediction.gains import Gain
    from perfmodel.timeline.memory import MemoryTimeline


CPU = "cpu"
_KERNELS = (
    "device_us=time:us;step_frac=of step:share;device_frac=of GPU:share;count:count;"
    "mean_us=mean us:,.1f"
)
_DEVICE = "device_us=GPU:us;device_frac=of GPU:share;"
_BACKWARD = "device_us=forward:us;backward_device_us=backward:us;"
_HOST = "host_us=host:us;step_frac=of step:share;count:count"
_OPERATORS = f"{_HOST};host_total_us=with calls:us"
_COLLECTIVES = (
    "collective;process_group=group;group_size=ranks:,d;count:count;time_us=time:us;"
    "step_frac=of step:share;size_bytes=GB:gb;algbw_gb_per_s=algbw:,.3f;busbw_gb_per_s=busbw:,.3f"
)
_RATES = (
    "op=operator(shapes);device_us=time:us;count:count;rate=TFLOP/s:,.2f;gb_per_s=GB/s:,.0f;"
    "roofline_frac=roofline:share;bound_by=bound by"
)
_RANKS = (
    "step_us=step:us;gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;comm_us=comm:us;"
    "exposed_comm_us=exposed:us"
)
_STEPS = tables.columns(
    "step;step_us=time:us;gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;"
    "compute_us=compute:us;comm_us=comm:us;exposed_comm_us=exposed:us;memcpy_us=memcpy:us"
)
_OVERHEADS = (
    "thread;type:name;count:,d!;total_us=total:,.1f!;free_total_us=unblocked|total:,.1f!;"
    "mean_us=mean:,.1f;median_us=median:,.1f;free_count=unblocked|count:,d;"
    "free_mean_us=unblocked|mean:,.1f;free_median_us=unblocked|median:,.1f"
)


@dataclass(frozen=True)
class BreakdownPage:
    """A breakdown as tables of at most so many `rows`, in the same order for one rank and many."""

    of: Breakdown
    rows: int

    def verdict(self, rank: RankBreakdown, helps: Sequence[Gain]) -> str:
        """Where the time of a rank's steps goes, the largest cause, and what would gain most."""
        summary, path_us = rank.summary, tables.median_step(rank.steps).critical_path_by_kind
        has_device = rank.device != CPU
        text = f"{human_us(tables.median_us(rank.steps))} a step{self._where(rank, ' of')}"
        if has_device:
            active = tables.percent(summary.gpu_active_us, summary.step_us)
            text += f", the GPU active {active} of it"
        text += tables.path_text(path_us, has_device=has_device)
        gains = (f"; largest gain: {g.name}, {tables.percent(g.gain_frac, 1)}" for g in helps)
        return f"{text}{next(gains, '')}."

    def ranks(self) -> Iterator[Block]:
        """The ranks in one table, who holds them up, and which steps medians leave out."""
        found, steps = self.of, self.of.slowest.steps
        yield _ranks(found)
        yield tables.straggler_text(found.waiting.to_dict() if found.waiting else None)
        yield tables.excluded_steps([(s.name, s.role, s.accounting.step_us) for s in steps])

    def causes(self, rank: RankBreakdown) -> Iterator[Block]:
        """Communication and memory of a rank; idle time and path by cause."""
        from perfmodel.timeline.memory import shown_timelines

        summary, step = rank.summary, tables.median_step(rank.steps)
        if summary.hidden_comm_frac is not None:
            hidden = f"{tables.percent(summary.hidden_comm_frac, 1)} of it hidden behind other work"
            yield f"Communication: {human_us(summary.comm_us)} per step, {hidden} of the device"
        yield from map(_memory, shown_timelines(rank.memory))
        where = self._where(rank) + (f", median step {step.name}" if rank.steps[1:] else "")
        for title, time_us, share in (
            ("GPU idle by cause", step.idle_by_cause, "of idle"),
            ("Critical path by kind", step.critical_path_by_kind, "of step"),
        ):
            if time_us:
                yield tables.parts_table(title + where, [("", time_us)], share)

    def _where(self, rank: RankBreakdown, between: str = ",") -> str:
        """Behind a title, which rank it is of, where there are several."""
        return f"{between} rank {rank.rank}" if len(self.of.ranks) > 1 else ""

    def details(self, rank: RankBreakdown) -> Iterator[Block]:
        """The steps, rates and host overheads of a rank."""
        records = [
            asdict(step.accounting) | {"step": tables.step_name(step.name, step.role)}
            for step in rank.steps
        ]
        heads = _STEPS if rank.device != CPU else _STEPS[:2]
        yield Table(f"Steps{self._where(rank)}", heads, records)
        yield from self._rates(rank)
        yield from _overheads(tables.median_step(rank.steps))

    def _rates(self, rank: RankBreakdown) -> Iterator[Block]:
        """What operators with shapes reached, against what the device could."""
        from perfmodel.prediction.breakdown.tables import rounded_records

        rates = rank.sums("rates")
        if rank.device == CPU:
            return
        records = rounded_records(rank.rows("rates", self.rows))
        for row in records:
            row["op"] = f"{row['operator'].removeprefix('aten::')}({row['shapes']})"
            row["rate"] = row["tflop_per_s"] if row["flop"] else None
        yield from _per_step("Rates by shape", _RATES, records)
        if records:
            peaks = f" Roofline of {rates.device}." if rates.device else ""
            yield f"{tables.percent(rates.named_frac, 1)} of the kernel time has a rate.{peaks}"
        if rates.note:
            yield f"Rates by shape: {rates.note}"

    def hotspots(self) -> Iterator[Table]:
        """Kernels, operators, ranges and collectives by their time, in the mean over ranks."""
        names = ("top_kernels", "top_operators", "annotations", "modules", "collectives")
        kernels, operators, ranges, modules, collectives = (
            self.of.rows(name, self.rows) for name in names
        )
        ranges = [row for row in ranges if row["kind"] != "module"]  # which have their own table
        device = _DEVICE if kernels else ""
        has_backward = any(row["backward_device_us"] for row in modules)
        of_modules = _BACKWARD if has_backward else device
        yield from _per_step("Top kernels", f"short_name=kernel;{_KERNELS}", kernels)
        yield from _per_step("Top operators", f"name=operator;{device}{_OPERATORS}", operators)
        yield from _per_step("Annotated ranges", f"name=range;{device}{_HOST}", ranges)
        yield from _per_step("Modules", f"name=module;{of_modules}{_HOST}", tree(modules))
        yield from _per_step("Collectives (GB/s as nccl-tests)", _COLLECTIVES, collectives)


def _per_step(title: str, heads: str, records: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    if records:
        yield Table(f"{title}, per step", heads, records)


def _overheads(step: StepBreakdown) -> Iterator[Table]:
    """Host overheads per thread and type, as recorded and without ops that blocked."""
    records: list[Mapping[str, Any]] = []
    for thread, variants in step.overheads.items():
        for kind, cell in variants["raw"].items():
            if cell["count"]:
                rest = variants["no_blocking"].get(kind) or {"count": 0}
                rest = {f"free_{key}": value for key, value in rest.items() if rest["count"]}
                records.append({"thread": thread, "type": named(kind), **cell, **rest})
                thread = ""
    if records:
        title = "Host overhead per op (us); unblocked: without ops that waited"
        yield Table(title, _OVERHEADS, records)


def tree(modules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Modules by their path, the longest first, below what they are part of."""
    us = {row["name"]: -row["host_us"] for row in modules}

    def place(row: Mapping[str, Any]) -> list[tuple[float, str]]:
        parts = row["name"].split("/")
        above = ("/".join(parts[:end]) for end in range(2, len(parts) + 1))
        return [(us.get(path, 0.0), path) for path in above]

    ordered = sorted(modules, key=place)
    names = [row["name"].split("/")[1:] for row in ordered]
    return [
        {**row, "name": "│ " * (len(parts) - 1) + parts[-1]}
        for row, parts in zip(ordered, names, strict=True)
    ]


def about(found: Breakdown) -> str:
    """The source, its device and how many ranks it has."""
    ranks = counted(len(found.ranks), "rank")
    return f"{tables.source_text(found.source)}: {found.ranks[0].device}, {ranks}"


def _ranks(breakdown: Breakdown) -> Table:
    """One row per rank: means over the steady steps."""
    has_device, waiting = breakdown.ranks[0].device != CPU, breakdown.waiting
    cause = "main idle cause" if has_device else "most of the path"
    heads = f"rank;{_RANKS if has_device else 'step_us=step:us;transfer_us=transfer:us'}"
    records = []
    for rank in breakdown.ranks:
        summary = rank.summary
        is_slowest = len(breakdown.ranks) > 1 and summary.rank == breakdown.slowest.rank
        record = asdict(summary) | rank.meets_us
        record |= {"rank": f"{summary.rank}{' *' if is_slowest else ''}"}
        record |= {"cause": named(summary.main_cause) if summary.main_cause else None}
        records.append(record)
    holds_up = waiting is not None and waiting.straggler == breakdown.slowest.rank
    marked = "the others wait for it" if holds_up else "the slowest"
    marked = f"; * {marked}" if len(records) > 1 else ""
    title = f"Ranks, mean of {counted(breakdown.ranks[0].summary.steps, 'step')}{marked}"
    return Table(title, f"{heads};waiting_us=waiting:us!;cause={cause}:name!", records)


def _memory(timeline: MemoryTimeline) -> str:
    found = timeline.to_dict()

    def gb(key: str) -> str:
        return f"{found[f'{key}_bytes'] / BYTES_PER_GB:,.3f} GB"

    where = f" ({found['peak_step']})" if found["peak_step"] else ""
    reserved = f", {gb('peak_reserved')} reserved" if found["peak_reserved_bytes"] else ""
    least = "above what the recording began with, " if timeline.is_relative else ""
    return (
        f"Memory of {timeline.device}: {least}peak {gb('peak_allocated')} allocated"
        f"{reserved}, at {found['peak_at_us'] / US_PER_MS:,.1f} ms{where}; "
        f"first {gb('first_allocated')}, last {gb('last_allocated')}"
    )


def gain_blocks(listed: Sequence[Gain], unrecorded: str = "") -> Iterator[str]:
    """The list, each line with its command below; or why there is none."""
    if not listed:
        why = unrecorded or "no what-if alone gains more than 1 % of the step."
        yield f"\nLargest gains: {why}"
        return
    step_us = listed[0].gain_us / listed[0].gain_frac
    yield Heading(f"\nLargest gains of a scheduled step of {human_us(step_us)} (one at a time)")
    times = tables.Times(gain.gain_us for gain in listed)
    for gain in listed:
        saved = f"-{times(gain.gain_us)} {times.unit}, {tables.percent(gain.gain_frac, 1)}"
        yield f"{gain.name}: {saved}: {gain.advice}"
        yield Command(gain.command)
