"""`perfmodel sweep`: thousands of settings of hardware and workload, and what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console
from perfmodel.cli.options import Format
from perfmodel.cli.output import Output, check_figure, save_figure, working, wrote
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import NAME, TIME, Column, Table, columns, counted

if TYPE_CHECKING:
    from perfmodel.explore import Sweep

Records = Sequence[Mapping[str, Any]]
UNASKED_POINTS = 10_000_000
"""More take hours: they are swept with `--yes` alone."""
MAX_ROWS = 20
"""Points of a sweep that are shown; up to so many, all."""
J_PER_KWH = 3.6e6
_UNITS = {
    "step_us": ("step", TIME, 1.0),
    "samples_per_s": ("samples/s", "s", 1.0),
    "cost_usd_per_million": ("USD per\nmillion", "s", 1.0),
    "energy_j_per_sample": ("kWh per\nmillion", "s", 1e6 / J_PER_KWH),
    "power_w": ("power (W)", "s", 1.0),
}
"""Heads and forms of objectives, in the units of `compare`, and their factors."""


def sweep(
    spec: Path,
    output: Path | None = None,
    objective: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    sensitivity: bool = False,
    yes: bool = False,
    figure: Path | None = None,
    format: Format | None = None,
) -> None:
    if workers and scheduler:
        raise UsageError("--workers starts its own cluster: give --workers or --scheduler")
    check_figure(figure)
    target = Output(format)
    from perfmodel import explore
    from perfmodel.api import results_folder

    wanted = explore.load_spec(spec, objective)
    if (points := len(wanted.space)) > UNASKED_POINTS and not yes:
        raise UsageError(f"{spec}: {points:,} points; --yes sweeps them, fewer steps may do")
    folder = output or results_folder(spec)
    with working("sweeping") as begin:
        swept = explore.sweep(wanted, folder, workers=workers, scheduler=scheduler, begin=begin)
    if swept.failed == len(swept.frame):
        raise UsageError(f"{spec}: {swept.warnings[0]} ({folder} holds why of each)")
    elasticities = explore.sensitivity(wanted) if sensitivity else None
    save_figure(figure, swept.plot)
    answer = swept.to_dict() | {
        "sensitivity": elasticities.to_dict() if elasticities else None,
    }
    wrote(folder, "every point, in Parquet; read it with pandas.read_parquet")
    target.write(
        lambda: answer,
        swept.to_frame,
        lambda console: _show(console, swept, answer),
        swept.warnings,
    )


def _show(console: Console, swept: Sweep, answer: Mapping[str, Any]) -> None:
    """What was swept, its front or its rows, and what else was wanted."""

    def show(title: str, records: Records, heads: Sequence[Column] = ()) -> None:
        heads = heads or _axis_columns(records[0], list(records[0]))
        console.show(Table(title, heads, records[:MAX_ROWS]))
        if len(records) > MAX_ROWS:
            console.say(f"… {len(records) - MAX_ROWS} more (--format json)")

    console.say(f"{swept.spec.input}: {counted(answer['points'], 'point')} in {swept.folder}")
    console.say_assumed("its best point", answer["assumed"])
    if answer["pareto"]:
        show(*_points(swept, [row["point"] for row in answer["pareto"]]))
    if answer["sensitivity"]:
        keys = ("axis", "objective", "base", "at_base", "elasticity")
        rows = [{key: row[key] for key in keys} for row in answer["sensitivity"]["elasticities"]]
        show("Elasticities", rows)


def _points(found: Sweep, front: Sequence[int]) -> tuple[str, Records, list[Column]]:
    """Every point where they are few, the best ones marked; of many the best ones alone."""
    several = len(found.objectives) > 1
    rows = [found.row(at) for at in range(len(found.frame))]
    title, is_marked = f"Points; * {'Pareto front' if several else 'best'}", len(rows) > 1
    if len(rows) > MAX_ROWS:
        rows = [row for number in front for row in rows if row["point"] == number]
        title, is_marked = "Pareto front" if several else "Best point", False
    units = {name: _UNITS.get(name, (name, "s", 1.0)) for name in found.objectives}
    records = []
    for row in rows:
        record = dict(row) | {"mark": "*" if row["point"] in front else ""}
        for name, (_, form, factor) in units.items():
            if form != TIME and row[name] is not None:
                size = row[name] * factor
                record[name] = f"{size:,.0f}" if abs(size) >= 1000 else f"{size:.3g}"
        records.append(record)
    heads = _axis_columns(rows[0], found.axes) + (columns("mark=:s") if is_marked else [])
    heads += [Column(name, head, form) for name, (head, form, _) in units.items()]
    return title, records, heads


def _axis_columns(row: Mapping[str, Any], axes: Sequence[str]) -> list[Column]:
    """Those of texts first; long names on several lines."""
    forms = {name: NAME if isinstance(row[name], str) else ",.6g" for name in axes}
    ordered = sorted(axes, key=lambda name: forms[name] != NAME)
    return [Column(name, name.replace(".", ".\n"), forms[name], keep=True) for name in ordered]
