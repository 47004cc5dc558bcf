"""Tables of a sweep: the front, the best, sensitivities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cli.figures_read import say_assumed
from perfmodel.cli.tables import NOTHING, add, counted, new_table, say, show

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.explore import Sweep

MOST_ROWS = 20


def show_sweep(console: Console, found: Sweep, answer: Mapping[str, Any]) -> None:
    """What was swept, its front or its rows, and what was asked beside."""
    say(console, f"{found.spec.input}: {counted(answer['points'], 'point')} in {found.folder}")
    say_assumed(console, "its best point", answer["assumed"])
    names = [*found.axes, *found.objectives]
    front = answer["pareto"]
    if front:
        title = "Pareto front" if len(found.objectives) > 1 else "Best point"
        _rows(console, title, front, ["point", *names])
    elif found.objectives:
        _rows(console, "Means per file", _means(found), ["figure", "mean", "least", "largest"])
    if answer["sensitivity"]:
        rows = answer["sensitivity"]["elasticities"]
        _rows(console, "Elasticities", rows, ["axis", "objective", "base", "at_base", "elasticity"])
    if answer["reach"]:
        _reach(console, answer["reach"])
    if answer["sobol"]:
        _rows(console, "Sobol indices", answer["sobol"], list(answer["sobol"][0]))


def _means(found: Sweep) -> list[dict[str, Any]]:
    table = found.frame[list(found.objectives)]
    return [
        {
            "figure": name,
            "mean": float(table[name].mean()),
            "least": float(table[name].min()),
            "largest": float(table[name].max()),
        }
        for name in found.objectives
        if table[name].abs().max() > 0
    ]


def _reach(console: Console, told: Mapping[str, Any]) -> None:
    where = f"{told['axis']} ({told['base'][told['axis']]:,.6g} gives {told['at_base']:,.6g})"
    wanted = f"{told['objective']} = {told['wanted']:,.6g}"
    if told["value"] is None:
        say(
            console,
            f"{wanted} is out of reach: nearest is {told['objective_there']:,.6g}, with {where} at "
            f"{told['closest']:,.6g}",
        )
    else:
        say(console, f"{wanted} needs {where} at {told['value']:,.6g}")


def _rows(
    console: Console, title: str, rows: Sequence[Mapping[str, Any]], columns: list[str]
) -> None:
    texts = sum(isinstance(rows[0][name], str) for name in columns)
    columns = sorted(columns, key=lambda name: not isinstance(rows[0][name], str))
    heads = [name.replace(".", ".\n").replace("_usd", "_usd\n") for name in columns]
    table = new_table(title, *heads, texts=texts)
    for row in rows[:MOST_ROWS]:
        add(table, *(_text(row[name]) for name in columns))
    show(console, table)
    if len(rows) > MOST_ROWS:
        say(console, f"… {len(rows) - MOST_ROWS} more (--format json)")


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:,.6g}"
