"""Designs against each other, and sweeps of settings, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console
from perfmodel.cli.hardware_tables import say_assumed_figures
from perfmodel.designs.composed import OWN_SETTINGS
from perfmodel.explore.spec import COST, ENERGY, RATE, STEP
from perfmodel.prediction.comparison import Comparison, DesignResult
from perfmodel.reporting.tables import NAME, TIME, Column, Table, Times, columns, counted, shown
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.explore import Sweep


_BOTTLENECKS = columns(
    "design:name;words=waits for;share_frac=share:.0%;gain=max gain:s;lever=by the best single fix!"
)
_SERVED = columns(
    "design:name;batch:,d;most_per_s=most per replica:,.0f;replicas:,d;load_frac=load:.2f;p99:s;"
    "usd_per_hour=USD/hour:,.2f"
)
_TIMES = "label=design:name;step_us=step:us;interval=90 % interval:s;samples_per_s=samples/s:,.0f"
_COSTS = "power_w=power (W):,.0f;kwh_per_million_samples=kWh:.3g;usd_per_million_samples=USD:.3g"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Designs by time, then by what they need and cost, then those that cannot be, and why."""
    source = comparison.source
    what = "training" if source["training"] else "inference"
    where = f"{source['hardware']} ({counted(source['devices'], 'device')})"
    console.say(f"{source['workload']} on {where}, {what}, batch {source['batch']:,}")
    feasible = [row for row in comparison.rows if row.is_feasible]
    plain = [row.to_dict() | {"label": _label(row)} for row in feasible]
    if feasible:
        console.show(_times(comparison, feasible, plain), _bottlenecks(plain))
    for design, why in comparison.without_gain.items():
        console.say(f"{design} is {why}")
    console.say(comparison.remark)
    if feasible:
        console.show(_needs(feasible, plain))
        if "p99_limit_us" in source:
            console.show(_served(comparison, feasible))
    for row in comparison.rows:
        if not row.is_feasible:
            why = row.why_not.removeprefix(f"{row.design}: ")
            console.say(f"{row.design} is not possible here: {why}")
        elif row.load is not None and row.load.note and row.serving is None:
            console.say(f"{row.design}: {row.load.note}")
    say_assumed_figures(
        console, source["hardware"], [each.to_dict() for each in comparison.assumed]
    )


def _label(row: DesignResult) -> str:
    """A design's name; of the workload in its own software, which that is."""
    if row.design != OWN_SETTINGS or row.deployment is None:
        return row.design
    return f"{row.design} ({row.deployment.workload.implementation.name})"


def _times(
    comparison: Comparison, rows: Sequence[DesignResult], plain: Sequence[dict[str, Any]]
) -> Table:
    times = Times(each["high_us"] for each in plain)
    rate = comparison.source["rate_per_s"]
    latency = ("p50_us", "p99_us") if rate is not None else ()
    records = []
    for row, each in zip(rows, plain, strict=True):
        record = each | {"interval": f"{times(each['low_us'])} to {times(each['high_us'])}"}
        for name in comparison.baselines:
            gain, ends = comparison.speed_up(row, name), comparison.speed_up_interval(row, name)
            record[f"over {name}"] = None if gain is None else f"{_ratio(gain)}x"
            if ends and row.design != name:
                record[f"ends {name}"] = " to ".join(map(_ratio, ends))
        load = each["latency"] or {}
        record |= {key: "unstable" if load.get(key) is None else load[key] for key in latency}
        records.append(record)
    gains = (f"over {name}:s;ends {name}=90 %:s" for name in comparison.baselines)
    latencies = (f"{key}={key.removesuffix('_us')}:human" for key in latency)
    at_rate = "" if rate is None else f" and latency at {rate:,.6g}/s"
    heads = columns(";".join((_TIMES, *gains, *latencies)))
    return Table(f"Step time{at_rate}", heads, records)


def _ratio(value: float) -> str:
    """Two digits at least: what is hundreds of times slower is not 0.00 times as fast."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _bottlenecks(plain: Sequence[dict[str, Any]]) -> Table:
    records = [
        why | {"design": each["design"], "gain": f"{shown(why['lever_speed_up'], '.2f')}x"}
        for each in plain
        if (why := each["bottleneck"])
    ]
    return Table("What stops it, and what would help", _BOTTLENECKS, records, full_names=True)


def _needs(rows: Sequence[DesignResult], plain: Sequence[dict[str, Any]]) -> Table:
    tiers = list(dict.fromkeys(tier for row in rows for tier in row.memory_gb))
    records = [each | row.memory_gb for row, each in zip(rows, plain, strict=True)]
    heads = columns(";".join(("label=design:name", *(f"{tier}:,.1f" for tier in tiers), _COSTS)))
    title = "GB of memory (hbm and dram per rank, others per node), and per million samples"
    return Table(title, heads, records)


def _served(found: Comparison, rows: Sequence[DesignResult]) -> Table:
    records: list[dict[str, Any]] = []
    for row in rows:
        each, record = row.serving, dict[str, Any](design=row.design)
        if each is not None and each.load.p99_us is not None:
            load = {"load_frac": each.load.load_frac, "p99": human_us(each.load.p99_us)}
            record |= asdict(each) | load
        elif row.least_p99_us:
            record["p99"] = f"{human_us(row.least_p99_us)} at least"
        records.append(record)
    rate, limit = found.source["rate_per_s"], human_us(found.source["p99_limit_us"])
    return Table(f"Least cost for {rate:,.6g}/s, 99 % within {limit}", _SERVED, records)


MAX_ROWS = 20
"""Points of a sweep that are shown; up to so many, all."""
J_PER_KWH = 3.6e6
_UNITS = {
    STEP: ("step", TIME, 1.0),
    RATE: ("samples/s", "s", 1.0),
    COST: ("USD per\nmillion", "s", 1.0),
    ENERGY: ("kWh per\nmillion", "s", 1e6 / J_PER_KWH),
    "power_w": ("power (W)", "s", 1.0),
}
"""Heads and forms of objectives, in the units of `compare`, and their factors."""


def show_sweep(console: Console, swept: Sweep, answer: Mapping[str, Any]) -> None:
    """What was swept, its front or its rows, and what else was wanted."""
    console.say(f"{swept.spec.input}: {counted(answer['points'], 'point')} in {swept.folder}")
    say_assumed_figures(console, "its best point", answer["assumed"])
    if answer["pareto"]:
        _show_points(console, swept, [row["point"] for row in answer["pareto"]])
    elif swept.objectives:
        _show_rows(console, "Means per file", list(_means(swept)))
    if answer["sensitivity"]:
        keys = ("axis", "objective", "base", "at_base", "elasticity")
        rows = [{key: row[key] for key in keys} for row in answer["sensitivity"]["elasticities"]]
        _show_rows(console, "Elasticities", rows)
    if answer["reach"]:
        _say_target(console, answer["reach"])
    if answer["sobol"]:
        _show_rows(console, "Sobol indices", answer["sobol"])


def _show_points(console: Console, found: Sweep, front: Sequence[int]) -> None:
    """Every point where they are few, the best ones marked; of many the best ones alone."""
    several = len(found.objectives) > 1
    rows = [found.row(at) for at in range(len(found.frame))]
    title = f"Points; * {'Pareto front' if several else 'best'}"
    is_marked = len(rows) > 1
    if len(rows) > MAX_ROWS:
        rows = [row for number in front for row in rows if row["point"] == number]
        title, is_marked = "Pareto front" if several else "Best point", False
    units = {name: _UNITS.get(name, (name, "s", 1.0)) for name in found.objectives}
    records = []
    for row in rows:
        record = dict(row) | {"mark": "*" if row["point"] in front else ""}
        for name, (_, form, factor) in units.items():
            if form != TIME and row[name] is not None:
                record[name] = _scaled(row[name] * factor)
        records.append(record)
    heads = _axis_columns(rows[0], found.axes) + (columns("mark=:s") if is_marked else [])
    heads += [Column(name, head, form) for name, (head, form, _) in units.items()]
    _show_first(console, title, heads, records)


def _axis_columns(row: Mapping[str, Any], axes: Sequence[str]) -> list[Column]:
    """Those of texts first; long names on several lines."""
    forms = {name: NAME if isinstance(row[name], str) else ",.6g" for name in axes}
    ordered = sorted(axes, key=lambda name: forms[name] != NAME)
    return [Column(name, name.replace(".", ".\n"), forms[name], keep=True) for name in ordered]


def _show_rows(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    _show_first(console, title, _axis_columns(rows[0], list(rows[0])), rows)


def _show_first(
    console: Console, title: str, heads: Sequence[Column], records: Sequence[Any]
) -> None:
    console.show(Table(title, heads, records[:MAX_ROWS]))
    if len(records) > MAX_ROWS:
        console.say(f"… {len(records) - MAX_ROWS} more (--format json)")


def _scaled(size: float) -> str:
    return f"{size:,.0f}" if abs(size) >= 1000 else f"{size:.3g}"


def _means(swept: Sweep) -> Iterator[dict[str, Any]]:
    table = swept.frame[list(swept.objectives)].agg(["mean", "min", "max"])
    for name in swept.objectives:
        if table[name].abs().max() > 0:
            mean, least, largest = map(float, table[name])
            yield {"figure": name, "mean": mean, "least": least, "largest": largest}


def _say_target(console: Console, target: Mapping[str, Any]) -> None:
    axis, wanted = target["axis"], f"{target['objective']} = {target['wanted']:,.6g}"
    where = f"{axis} ({target['base'][axis]:,.6g} gives {target['at_base']:,.6g}) at"
    if target["value"] is None:
        there = f"nearest is {target['objective_there']:,.6g}"
        console.say(f"{wanted} is out of reach: {there}, with {where} {target['closest']:,.6g}")
    else:
        console.say(f"{wanted} needs {where} {target['value']:,.6g}")
