"""A comparison of designs as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from perfmodel.cli.figures_read import say_assumed
from perfmodel.cli.tables import NOTHING, Times, add, counted, new_table, say, show
from perfmodel.prediction.comparison import Compared, Comparison
from perfmodel.units import human_us

_WORDS = {"kWh": "kwh_per_million_samples", "USD": "usd_per_million_samples"}


def show_comparison(console: Console, found: Comparison) -> None:
    """Designs by time, then by what they need and cost, then those that cannot be, and why."""
    source = found.source
    what = "training" if source["training"] else "inference"
    where = f"{source['hardware']} ({counted(source['devices'], 'device')})"
    say(console, f"{source['workload']} on {where}, {what}, batch {source['batch']:,}")
    feasible = [row for row in found.rows if row.is_feasible]
    if feasible:
        show(console, _times(found, feasible))
        show(console, _needs(feasible))
    for row in found.rows:
        if not row.is_feasible:
            say(console, f"{row.design} cannot be: {row.why_not}")
        elif row.load is not None and row.load.note:
            say(console, f"{row.design}: {row.load.note}")
    say_assumed(console, source["hardware"], [each.to_dict() for each in found.assumed])


def _times(found: Comparison, rows: list[Compared]) -> Table:
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
        "speed-up",
        *latency,
        "bound by",
    )
    for row, each in zip(rows, plain, strict=True):
        speed_up = found.speed_up(row)
        add(
            shown,
            row.design,
            times(each["step_us"]),
            f"{times(each['low_us'])} to {times(each['high_us'])}",
            f"{each['samples_per_s']:,.0f}",
            NOTHING if speed_up is None else f"{speed_up:.2f}",
            *(_latency(each["latency"], f"{name}_us") for name in latency),
            row.bound_by or NOTHING,
        )
    return shown


def _latency(load: dict[str, float | None] | None, name: str) -> str:
    value = None if load is None else load[name]
    return "unstable" if value is None else human_us(value)


def _needs(rows: list[Compared]) -> Table:
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
