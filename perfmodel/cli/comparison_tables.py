"""Designs against each other, and sweeps of settings, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Column, Console, Table
from perfmodel.cli.failures import one_line
from perfmodel.cli.hardware_tables import say_assumed_figures
from perfmodel.cli.tables import NOTHING, Times, counted, filled, say, shown
from perfmodel.designs.composed import OWN_SETTINGS
from perfmodel.explore.spec import COST, ENERGY, RATE, STEP
from perfmodel.prediction.comparison import Comparison, DesignResult
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.explore import Sweep


def _label(row: DesignResult) -> str:
    """A design's name; of the workload in its own software, which that is."""
    if row.design != OWN_SETTINGS or row.deployment is None:
        return row.design
    return f"{row.design} ({row.deployment.workload.implementation.name})"


_WORDS = {"kWh": "kwh_per_million_samples", "USD": "usd_per_million_samples"}


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Designs by time, then by what they need and cost, then those that cannot be, and why."""
    source = comparison.source
    what = "training" if source["training"] else "inference"
    where = f"{source['hardware']} ({counted(source['devices'], 'device')})"
    say(console, f"{source['workload']} on {where}, {what}, batch {source['batch']:,}")
    feasible = [row for row in comparison.rows if row.is_feasible]
    if feasible:
        console.show(_times(comparison, feasible))
        console.show(_bottlenecks(feasible))
    for design, why in comparison.without_gain.items():
        console.print(one_line(f"{design} is {why}"))
    if comparison.remark:
        console.print(one_line(comparison.remark))
    if feasible:
        console.show(_needs(feasible))
        if "p99_limit_us" in source:
            console.show(_served(comparison, feasible))
    for row in comparison.rows:
        if not row.is_feasible:
            why = row.why_not.removeprefix(f"{row.design}: ")
            console.print(one_line(f"{row.design} is not possible here: {why}"))
        elif row.load is not None and row.load.note and row.serving is None:
            say(console, f"{row.design}: {row.load.note}")
    say_assumed_figures(
        console, source["hardware"], [each.to_dict() for each in comparison.assumed]
    )


def _times(comparison: Comparison, rows: list[DesignResult]) -> Table:
    plain = [row.to_dict() for row in rows]
    times = Times([each["high_us"] for each in plain])
    offered = comparison.source["rate_per_s"] is not None
    latency = ("p50", "p99") if offered else ()
    cells = []
    for row, each in zip(rows, plain, strict=True):
        gains = chain(*(_gain(comparison, row, name) for name in comparison.baselines))
        load = each["latency"] or {}
        latencies = (
            "unstable" if load.get(f"{name}_us") is None else human_us(load[f"{name}_us"])
            for name in latency
        )
        step = (times(each["step_us"]), f"{times(each['low_us'])} to {times(each['high_us'])}")
        cells.append((_label(row), *step, f"{each['samples_per_s']:,.0f}", *gains, *latencies))
    over = (head for name in comparison.baselines for head in (f"over {name}", "90 %"))
    heads = ("design", f"step ({times.unit})", "90 % interval", "samples/s", *over, *latency)
    rate = f" and latency at {comparison.source['rate_per_s']:,.6g}/s" if offered else ""
    return _by_design(f"Step time{rate}", heads, cells)


def _by_design(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1
) -> Table:
    """A table whose first column, of designs, keeps its words."""
    table = filled(title, heads, rows, texts)
    table.columns[0].no_wrap = True
    return table


def _gain(comparison: Comparison, row: DesignResult, over: str) -> tuple[str, str]:
    """The speed-up over a design, and its interval; that of a design over itself is no news."""
    gain, ends = comparison.speed_up(row, over), comparison.speed_up_interval(row, over)
    if gain is None:
        return NOTHING, NOTHING
    interval = " to ".join(map(_ratio, ends)) if ends and row.design != over else NOTHING
    return f"{_ratio(gain)}x", interval


def _ratio(value: float) -> str:
    """Two digits at least: what is hundreds of times slower is not 0.00 times as fast."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _bottlenecks(rows: list[DesignResult]) -> Table:
    heads = ("design", "waits for", "share", "up to", "by the next lever")
    cells = []
    for row in rows:
        why = row.bottleneck
        if why is not None:
            gain = NOTHING if why.lever_speed_up is None else f"{why.lever_speed_up:.2f}x"
            cells.append((row.design, why.words, f"{why.share_frac:.0%}", gain, why.lever))
    table = _by_design("What stops it, and what would help", heads, cells, texts=2)
    table.columns[-1] = Column(heads[-1], "left", no_wrap=False, overflow="fold", keep=True)
    return table


def _needs(rows: list[DesignResult]) -> Table:
    tiers = list(dict.fromkeys(tier for row in rows for tier in row.memory_gb))
    cells = []
    for row in rows:
        each = row.to_dict()
        memory = (shown(row.memory_gb.get(tier), ",.1f") for tier in tiers)
        per_million = (shown(each[key], ".3g") for key in _WORDS.values())
        cells.append((_label(row), *memory, f"{each['power_w']:,.0f}", *per_million))
    title = "GB of memory (hbm and dram per rank, others per node), and per million samples"
    return _by_design(title, ("design", *tiers, "power (W)", *_WORDS), cells)


def _served(found: Comparison, rows: list[DesignResult]) -> Table:
    source = found.source
    limit = human_us(source["p99_limit_us"])
    cells = []
    for row in rows:
        each = row.serving
        if each is None or each.load.p99_us is None:
            least = f"{human_us(row.least_p99_us)} at least" if row.least_p99_us else NOTHING
            cells.append((row.design, *[NOTHING] * 4, least, NOTHING))
            continue
        served = (f"{each.batch:,}", f"{each.most_per_s:,.0f}/s", f"{each.replicas:,}")
        load = (f"{each.load.load_frac:.2f}", human_us(each.load.p99_us))
        cells.append((row.design, *served, *load, shown(each.usd_per_hour, ",.2f")))
    heads = ("design", "batch", "most per replica", "replicas", "load", "p99", "USD/hour")
    return filled(
        f"Least cost for {source['rate_per_s']:,.6g}/s, 99 % within {limit}", heads, cells
    )


MAX_ROWS = 20
"""Points of a sweep that are shown; up to so many, all."""
MEAN_COLUMNS = ("figure", "mean", "least", "largest")


def show_sweep(console: Console, swept: Sweep, answer: Mapping[str, Any]) -> None:
    """What was swept, its front or its rows, and what was asked beside."""
    say(console, f"{swept.spec.input}: {counted(answer['points'], 'point')} in {swept.folder}")
    say_assumed_figures(console, "its best point", answer["assumed"])
    front = answer["pareto"]
    if front:
        _show_points(console, swept, [row["point"] for row in front])
    elif swept.objectives:
        _rows(console, "Means per file", _means(swept), list(MEAN_COLUMNS))
    if answer["sensitivity"]:
        rows = answer["sensitivity"]["elasticities"]
        _rows(console, "Elasticities", rows, ["axis", "objective", "base", "at_base", "elasticity"])
    if answer["reach"]:
        _say_target(console, answer["reach"])
    if answer["sobol"]:
        _rows(console, "Sobol indices", answer["sobol"], list(answer["sobol"][0]))


def _show_points(console: Console, found: Sweep, front: Sequence[int]) -> None:
    """Every point where they are few, the best ones marked; of many the best ones alone."""
    best = "Pareto front" if len(found.objectives) > 1 else "best"
    rows = [found.row(at) for at in range(len(found.frame))]
    title = f"Points; * {best}"
    if len(rows) > MAX_ROWS:
        rows = [row for number in front for row in rows if row["point"] == number]
        title = "Pareto front" if len(found.objectives) > 1 else "Best point"
    axes = sorted(found.axes, key=lambda name: not isinstance(rows[0][name], str))
    texts = sum(isinstance(rows[0][name], str) for name in axes)
    times = Times(row.get(STEP) for row in rows)
    heads = [name.replace(".", ".\n") for name in axes]
    units = [_UNITS[name](times) if name in _UNITS else (name, 1.0) for name in found.objectives]
    marked = ("",) if len(rows) == len(found.frame) > 1 else ()
    cells = []
    for row in rows[:MAX_ROWS]:
        marks = ["*" if row["point"] in front else "" for _ in marked]
        figures = (
            times(row[name]) if name == STEP else _scaled(row[name], factor)
            for name, (_, factor) in zip(found.objectives, units, strict=True)
        )
        cells.append((*(_cell_text(row[name]) for name in axes), *marks, *figures))
    table = filled(title, (*heads, *marked, *(head for head, _ in units)), cells, texts)
    for column in table.columns[: len(heads)]:
        column.keep = True
    _show_first(console, table, len(rows))


def _show_first(console: Console, table: Table, rows: int) -> None:
    console.show(table)
    if rows > MAX_ROWS:
        say(console, f"… {rows - MAX_ROWS} more (--format json)")


J_PER_KWH = 3.6e6
_UNITS: dict[str, Callable[[Times], tuple[str, float]]] = {
    STEP: lambda times: (f"step\n({times.unit})", 1.0),
    RATE: lambda times: ("samples/s", 1.0),
    COST: lambda times: ("USD per\nmillion", 1.0),
    ENERGY: lambda times: ("kWh per\nmillion", 1e6 / J_PER_KWH),
    "power_w": lambda times: ("power (W)", 1.0),
}
"""Heads of objectives, in the units of `compare`, and what their figures are multiplied by."""


def _scaled(value: float | None, factor: float) -> str:
    if value is None:
        return NOTHING
    size = value * factor
    return f"{size:,.0f}" if abs(size) >= 1000 else f"{size:.3g}"


def _means(comparison: Sweep) -> list[dict[str, Any]]:
    table = comparison.frame[list(comparison.objectives)].agg(["mean", "min", "max"])
    return [
        dict(zip(MEAN_COLUMNS, (name, *map(float, table[name])), strict=True))
        for name in comparison.objectives
        if table[name].abs().max() > 0
    ]


def _say_target(console: Console, target: Mapping[str, Any]) -> None:
    axis, wanted = target["axis"], f"{target['objective']} = {target['wanted']:,.6g}"
    where = f"{axis} ({target['base'][axis]:,.6g} gives {target['at_base']:,.6g}) at"
    if target["value"] is None:
        there = f"nearest is {target['objective_there']:,.6g}"
        where = f"{where} {target['closest']:,.6g}"
        say(console, f"{wanted} is out of reach: {there}, with {where}")
    else:
        say(console, f"{wanted} needs {where} {target['value']:,.6g}")


def _rows(
    console: Console, title: str, rows: Sequence[Mapping[str, Any]], columns: list[str]
) -> None:
    texts = sum(isinstance(rows[0][name], str) for name in columns)
    columns = sorted(columns, key=lambda name: not isinstance(rows[0][name], str))
    heads = [name.replace(".", ".\n").replace("_usd", "_usd\n") for name in columns]
    cells = [[_cell_text(row[name]) for name in columns] for row in rows[:MAX_ROWS]]
    _show_first(console, filled(title, heads, cells, texts), len(rows))


def _cell_text(value: Any) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:,.6g}"
