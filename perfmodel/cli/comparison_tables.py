"""Designs against each other, and sweeps of settings, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console, Table
from perfmodel.cli.hardware_tables import say_assumed_figures
from perfmodel.cli.tables import NOTHING, Times, add, counted, new_table, say
from perfmodel.prediction.comparison import Comparison, DesignResult
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.explore import Sweep


_WORDS = {"kWh": "kwh_per_million_samples", "USD": "usd_per_million_samples"}


def show_comparison(console: Console, found: Comparison) -> None:
    """Designs by time, then by what they need and cost, then those that cannot be, and why."""
    source = found.source
    what = "training" if source["training"] else "inference"
    where = f"{source['hardware']} ({counted(source['devices'], 'device')})"
    say(console, f"{source['workload']} on {where}, {what}, batch {source['batch']:,}")
    feasible = [row for row in found.rows if row.is_feasible]
    if feasible:
        console.show(_times(found, feasible))
        console.show(_bottlenecks(feasible))
    if found.remark:
        say(console, found.remark)
    if feasible:
        console.show(_needs(feasible))
        if "p99_limit_us" in source:
            console.show(_served(found, feasible))
    for row in found.rows:
        if not row.is_feasible:
            say(console, f"{row.design} cannot be: {row.why_not}")
        elif row.load is not None and row.load.note and row.serving is None:
            say(console, f"{row.design}: {row.load.note}")
    say_assumed_figures(console, source["hardware"], [each.to_dict() for each in found.assumed])


def _times(found: Comparison, rows: list[DesignResult]) -> Table:
    plain = [row.to_dict() for row in rows]
    times = Times([each["high_us"] for each in plain])
    offered = found.source["rate_per_s"] is not None
    latency = ("p50", "p99") if offered else ()
    shown = new_table(
        "Step time" + (f" and latency at {found.source['rate_per_s']:,.6g}/s" if offered else ""),
        "design",
        f"step ({times.unit})",
        "90 % interval",
        "samples/s",
        *(f"over {name}" for name in found.baselines),
        *latency,
    )
    for row, each in zip(rows, plain, strict=True):
        speed_ups = [found.speed_up(row, name) for name in found.baselines]
        load = each["latency"] or {}
        latencies = (
            "unstable" if load.get(f"{name}_us") is None else human_us(load[f"{name}_us"])
            for name in latency
        )
        add(
            shown,
            row.design,
            times(each["step_us"]),
            f"{times(each['low_us'])} to {times(each['high_us'])}",
            f"{each['samples_per_s']:,.0f}",
            *(NOTHING if each is None else f"{each:.2f}x" for each in speed_ups),
            *latencies,
        )
    return shown


def _bottlenecks(rows: list[DesignResult]) -> Table:
    heads = ("design", "waits for", "share", "next lever, and its most")
    shown = new_table("What stops it, and what would help", *heads, texts=len(heads))
    for row in rows:
        why = row.bottleneck
        if why is not None:
            add(shown, row.design, why.words, f"{why.share_frac:.0%}", why.lever_text)
    return shown


def _needs(rows: list[DesignResult]) -> Table:
    tiers = list(dict.fromkeys(tier for row in rows for tier in row.memory_gb))
    shown = new_table(
        "Memory (hbm and dram per rank, others per node), and per million samples",
        "design",
        *(f"{tier} (GB)" for tier in tiers),
        "power (W)",
        *_WORDS,
    )
    for row in rows:
        each = row.to_dict()
        memory = row.memory_gb
        add(
            shown,
            row.design,
            *(f"{memory[tier]:,.1f}" if tier in memory else NOTHING for tier in tiers),
            f"{each['power_w']:,.0f}",
            *(NOTHING if each[key] is None else f"{each[key]:.3g}" for key in _WORDS.values()),
        )
    return shown


def _served(found: Comparison, rows: list[DesignResult]) -> Table:
    source = found.source
    limit = human_us(source["p99_limit_us"])
    shown = new_table(
        f"Least cost for {source['rate_per_s']:,.6g}/s, 99 % within {limit}",
        "design",
        "batch",
        "most per replica",
        "replicas",
        "load",
        "p99",
        "USD/hour",
    )
    for row in rows:
        each = row.serving
        if each is None or each.load.p99_us is None:
            least = f"{human_us(row.least_p99_us)} at least" if row.least_p99_us else NOTHING
            add(shown, row.design, *[NOTHING] * 4, least, NOTHING)
            continue
        add(
            shown,
            row.design,
            f"{each.batch:,}",
            f"{each.most_per_s:,.0f}/s",
            f"{each.replicas:,}",
            f"{each.load.load_frac:.2f}",
            human_us(each.load.p99_us),
            NOTHING if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}",
        )
    return shown


MOST_ROWS = 20
MEAN_COLUMNS = ("figure", "mean", "least", "largest")


def show_sweep(console: Console, found: Sweep, answer: Mapping[str, Any]) -> None:
    """What was swept, its front or its rows, and what was asked beside."""
    say(console, f"{found.spec.input}: {counted(answer['points'], 'point')} in {found.folder}")
    say_assumed_figures(console, "its best point", answer["assumed"])
    names = [*found.axes, *found.objectives]
    front = answer["pareto"]
    if front:
        title = "Pareto front" if len(found.objectives) > 1 else "Best point"
        _rows(console, title, front, ["point", *names])
    elif found.objectives:
        _rows(console, "Means per file", _means(found), list(MEAN_COLUMNS))
    if answer["sensitivity"]:
        rows = answer["sensitivity"]["elasticities"]
        _rows(console, "Elasticities", rows, ["axis", "objective", "base", "at_base", "elasticity"])
    if answer["reach"]:
        _say_target(console, answer["reach"])
    if answer["sobol"]:
        _rows(console, "Sobol indices", answer["sobol"], list(answer["sobol"][0]))


def _means(found: Sweep) -> list[dict[str, Any]]:
    table = found.frame[list(found.objectives)].agg(["mean", "min", "max"])
    return [
        dict(zip(MEAN_COLUMNS, (name, *map(float, table[name])), strict=True))
        for name in found.objectives
        if table[name].abs().max() > 0
    ]


def _say_target(console: Console, target: Mapping[str, Any]) -> None:
    where = (
        f"{target['axis']} ({target['base'][target['axis']]:,.6g} gives {target['at_base']:,.6g})"
    )
    wanted = f"{target['objective']} = {target['wanted']:,.6g}"
    if target["value"] is None:
        say(
            console,
            f"{wanted} is out of reach: nearest is {target['objective_there']:,.6g}, with {where} "
            f"at {target['closest']:,.6g}",
        )
    else:
        say(console, f"{wanted} needs {where} at {target['value']:,.6g}")


def _rows(
    console: Console, title: str, rows: Sequence[Mapping[str, Any]], columns: list[str]
) -> None:
    texts = sum(isinstance(rows[0][name], str) for name in columns)
    columns = sorted(columns, key=lambda name: not isinstance(rows[0][name], str))
    heads = [name.replace(".", ".\n").replace("_usd", "_usd\n") for name in columns]
    table = new_table(title, *heads, texts=texts)
    for row in rows[:MOST_ROWS]:
        add(table, *(_cell_text(row[name]) for name in columns))
    console.show(table)
    if len(rows) > MOST_ROWS:
        say(console, f"… {len(rows) - MOST_ROWS} more (--format json)")


def _cell_text(value: Any) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:,.6g}"
