"""`perfmodel compare`: designs against each other on one workload and machine; `perfmodel diff`:
two traces or predictions side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from perfmodel.api import ALL
from perfmodel.base.units import counted, human_us
from perfmodel.cli.console import assumed
from perfmodel.cli.options import DEFAULT_MAX_GB, PACKAGED, KernelOptions, max_bytes
from perfmodel.cli.output import (
    FAILED,
    STDOUT,
    Output,
    check_figure,
    check_target,
    save_figure,
    working,
    wrote,
)
from perfmodel.errors import UsageError
from perfmodel.plot.names import named
from perfmodel.reporting import tables
from perfmodel.reporting.tables import Block, Table, Times, Verdict, percent

if TYPE_CHECKING:
    from perfmodel.prediction.comparison import Comparison, DesignResult
    from perfmodel.reporting.difference import Difference


NONE_POSSIBLE = 2
"""The exit status where no design can be; the answer says why of each."""
LIST = "list"


_UNDESIGNED = {
    "default": "The workload as it is deployed: no design. All others are against it.",
    "own": "The workload in its own software, where designs edit another (its row says which).",
}
_BOTTLENECKS = "design:name;words=waits for;share_frac=share:share;gain:s!;lever=best single fix!"
_TIMES = "label=design:name;step_us=step:us;interval=90 % interval:s;samples_per_s=samples/s:,.0f"
_STEPS = "step:name;step_us=step:us;gain:s;gain_over_first=over first:s"
_COSTS = "usd=USD:size;kwh=kWh:size;power_w=power (W):,.0f"


def compare(
    workload: str | None = None,
    hardware: str | None = None,
    designs: str | None = None,
    batch: int | None = None,
    nodes: int | None = None,
    inference: bool = False,
    rate: float | None = None,
    p99_ms: float | None = None,
    max_delay_ms: float | None = None,
    usd_per_kwh: float | None = None,
    usd_per_hour: float | None = None,
    settings: list[str] | None = None,
    overheads: str | None = None,
    plan: Path | None = None,
    timed_by: KernelOptions = PACKAGED,
    ladder: bool = False,
    figure: Path | None = None,
    target: Output = STDOUT,
) -> None:
    check_figure(figure)
    if designs == LIST or (designs is None and workload is None and hardware is None):
        _list(target)
        return
    if workload is None:
        raise UsageError("name the workload to compare designs of: --workload criteo-terabyte")
    if hardware is None:
        raise UsageError("name the machine to compare designs on: --hardware dgx-a100-80gb")
    from perfmodel import api

    with working("comparing"):
        comparison = api.compare(
            workload,
            hardware,
            ALL if designs is None else designs,
            settings=settings or [],
            batch=batch,
            nodes=nodes,
            train=not inference,
            rate_per_s=rate,
            p99_ms=p99_ms,
            max_delay_ms=max_delay_ms,
            usd_per_kwh=usd_per_kwh,
            usd_per_hour=usd_per_hour,
            overheads=overheads,
            plan=plan,
            ladder=ladder,
        )
    save_figure(figure, comparison.plot)
    target.write_result(comparison, _blocks_of_steps if ladder else _blocks, comparison.warnings)
    if comparison.reference is None:
        raise typer.Exit(NONE_POSSIBLE)


def _list(target: Output) -> None:
    """Every design: its name, what it is, its settings and their defaults."""
    from perfmodel.designs import DESIGNS

    rows = [{"design": name, "what": text, "settings": ""} for name, text in _UNDESIGNED.items()]
    for name in DESIGNS:
        own: Any = fields(DESIGNS[name])  # type: ignore[arg-type]
        settings = ", ".join(f"{each.name}={each.default}" for each in own)
        what = (DESIGNS[name].__doc__ or "").strip().splitlines()[0]
        rows.append({"design": name, "what": what, "settings": settings})
    target.write_list("Designs", "perfmodel.designs/1", rows)


def _blocks(comparison: Comparison) -> Iterator[Block]:
    """The verdict, designs by time, then those with a step of their own by what they wait for, need
    and cost, then those that cannot be, and why."""
    source, same, answer = comparison.source, comparison.without_gain, comparison.to_dict()
    yield _of_source(source)
    told = zip(comparison.rows, answer["designs"], strict=True)
    pairs = [pair for pair in told if pair[0].is_feasible]
    pairs.sort(key=lambda pair: float(pair[1]["step_us"]))
    feasible = [row for row, _ in pairs]
    plain = [each | row.memory_gb | {"label": _label(row)} for row, each in pairs]
    own = [each for each in plain if each["design"] not in same]
    bottlenecks = [
        why | {"design": each["design"], "gain": gain and f"{_ratio(gain)}x"}
        for each in own
        if (why := each["bottleneck"])
        for gain in (why["lever_speed_up"],)
    ]
    if feasible:
        fastest, waits_for = feasible[0].result, feasible[0].bottleneck
        assert fastest is not None
        bounds = tables.interval(fastest.low_us, fastest.high_us)
        text = f"Fastest: {plain[0]['label']}, {human_us(fastest.step_us)} a step ({bounds})"
        yield Verdict(f"{text}{waits_for.sentence() if waits_for else ''}.")
        yield _times(answer["baselines"][0], plain)
        yield from _latencies(source["rate_per_s"], plain)
        title = "Bottleneck, and the largest gain by one fix"
        yield Table(title, _BOTTLENECKS, bottlenecks, full_names=True)
    for design, why in same.items():
        yield f"{design}: {why}"
    if feasible:
        known = dict.fromkeys(f"{tier}:,.1f" for row in feasible for tier in row.memory_gb)
        factor, many = tables.per_samples(each["usd_per_million_samples"] for each in own)
        for each in own:
            for key in ("kwh", "usd"):
                cost = each[f"{key}_per_million_samples"]
                each[key] = None if cost is None else cost * factor
        title = f"Memory in GB (hbm and dram per rank, others per node); per {many} samples"
        yield Table(title, ";".join(["label=design:name", *known, _COSTS]), own)
    for row in comparison.rows:
        if not row.is_feasible:
            yield _why_not(row)
        elif row.load is not None and row.load.note:
            yield f"{row.design}: {row.load.note}"
    yield assumed(source["hardware"], [each.to_dict() for each in comparison.assumed])


def _of_source(source: Mapping[str, Any]) -> str:
    what = "training" if source["training"] else "inference"
    where = f"{source['hardware']} ({counted(source['devices'], 'device')})"
    return f"{source['workload']} on {where}, {what}, batch {source['batch']:,}"


def _why_not(row: DesignResult) -> str:
    why = row.why_not.removeprefix(f"{row.design}: ")
    return f"{row.title} is not possible here: {why}"


def _blocks_of_steps(ladder: Comparison) -> Iterator[Block]:
    """Of each design its steps: time, gains, memory and what the step then waits for."""
    yield _of_source(ladder.source)
    tiers = dict.fromkeys(f"{tier}={tier} GB:,.1f" for row in ladder.rows for tier in row.memory_gb)
    heads = ";".join((_STEPS, *tiers, "words=waits for"))
    steps = defaultdict[str, list[dict[str, Any]]](list)
    for row, told in zip(ladder.rows, ladder.to_dict()["designs"], strict=True):
        if row.bottleneck:
            gains = {key: f"{_ratio(told[key])}x" for key in ("gain", "gain_over_first")}
            words = {"words": row.bottleneck.words}
            steps[row.design].append(told | row.memory_gb | gains | words)
    for design, records in steps.items():
        yield Table(f"{design}, step by step", heads, records, full_names=True)
    said = set[tuple[str, str]]()  # of steps that cannot be for one reason, the first says it
    for row in ladder.rows:
        if not row.is_feasible and (row.design, row.why_not) not in said:
            yield _why_not(row)
        said.add((row.design, row.why_not))
        for why in row.without_gain:
            yield f"{row.design}: {why}"
    yield assumed(ladder.source["hardware"], [each.to_dict() for each in ladder.assumed])


def _ratio(value: float) -> str:
    """Two digits at least: what is hundreds of times slower is not 0.00 times as fast."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _label(row: DesignResult) -> str:
    """A design's name; of the workload in its own software, which that is."""
    from perfmodel.designs.composed import OWN_SETTINGS

    if row.design != OWN_SETTINGS or row.deployment is None:
        return row.design
    return f"{row.design} ({row.deployment.workload.implementation.name})"


def _times(baseline: str, plain: Sequence[dict[str, Any]]) -> Table:
    """Steps with their intervals, and speed-ups over the baseline."""
    times = Times(each["high_us"] for each in plain)
    records = []
    for each in plain:
        gain, ends = each["speed_ups"][baseline], each["speed_up_intervals"][baseline]
        record = each | {"interval": f"{times(each['low_us'])} to {times(each['high_us'])}"}
        record["gain"] = None if gain is None else f"{_ratio(gain)}x"
        if ends and each["design"] != baseline:
            record["gain_interval"] = " to ".join(map(_ratio, ends))
        records.append(record)
    return Table("Step time", f"{_TIMES};gain=over {baseline}:s!;gain_interval=90 %:s", records)


def _latencies(rate_per_s: float | None, plain: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """From a sample's arrival to its answer, where that was asked for."""
    asked = [each | each["latency"] for each in plain if each["latency"]]
    records = [
        each | {key: "unstable" if each[key] is None else each[key] for key in ("p50_us", "p99_us")}
        for each in asked
    ]
    at = "" if rate_per_s is None else f" at {rate_per_s:,.6g}/s"
    found = "rate_per_s=at samples/s:,.0f;" if rate_per_s is None else ""
    batches = "batch=in batches:,d;" if any(each["batch"] for each in asked) else ""
    heads = f"label=design:name;{found}{batches}p50_us=p50:human;p99_us=p99:human"
    if asked:
        yield Table(f"Latency{at}", heads, records)


MAX_SHOWN = 12
_COLUMNS = "name=;a_us=A:us;b_us=B:us;change_us=B - A:us;share=of A:s"
_TITLES = (
    *("Per step", "Critical path by kind", "On the critical path, by op", "Device time by family"),
)
"""Of the groups of changes."""


def diff(
    a: str,
    b: str,
    top: int = MAX_SHOWN,
    fail_over: str | None = None,
    markdown: Path | None = None,
    steps_by: str | None = None,
    target: Output = STDOUT,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    from perfmodel import api
    from perfmodel.reporting.difference import parse_limits

    parse_limits(fail_over or "")
    check_target(markdown)
    limits, limit = fail_over or "", max_bytes(max_memory)
    with working("reading"):
        compared = api.diff(a, b, fail_over=limits, max_bytes=limit, steps_by=steps_by or "")
    if markdown:
        wrote(markdown, "Markdown, for a comment on the pull request", compared.to_markdown())
    target.write_result(compared, partial(_changes, top=top), cautions=compared.incomplete)
    if compared.failed:
        raise typer.Exit(FAILED)


def _changes(compared: Difference, top: int) -> Iterator[Block]:
    from perfmodel.plot.names import readable_names
    from perfmodel.reporting.sides import FAMILY, GROUPS, PATH

    kinds = {*compared.of(PATH).name, *compared.of(FAMILY).name}
    yield Verdict(compared.verdict)
    yield f"A: {compared.a.source} ({compared.a.hardware})"
    yield f"B: {compared.b.source} ({compared.b.hardware})"
    yield from compared.notes
    for group, title in zip(GROUPS, _TITLES, strict=True):
        every, records = compared.of(group), []
        some = every[(every.a_us != 0) | (every.b_us != 0)][:top].to_dict("records")
        for change, words in zip(some, readable_names([x["name"] for x in some]), strict=True):
            share = percent(change["change_us"], change["a_us"])
            share = share if share.startswith(("-", "0.0")) else f"+{share}"
            name = named(change["name"]) if change["name"] in kinds else words
            records.append(change | {"name": name, "share": share})
        if records:
            yield Table(title, _COLUMNS, records)
