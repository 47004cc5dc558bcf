"""Why a node takes what it takes, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from perfmodel.cli.explanation import reasons
from perfmodel.cli.figures_read import show_figures
from perfmodel.cli.tables import add, counted, new_table, say, show
from perfmodel.units import human_us


def show_explained(console: Console, answer: Mapping[str, Any]) -> None:
    """Where the node stands, its reasons from the outside in, and the figures that they read."""
    node, waits = answer["node"], answer["waits_for"]
    if answer["matches"] > 1:
        say(console, f"{counted(answer['matches'], 'node')} match {answer['asked']}; the longest:")
    op = f" of {node['op']}" if node["op"] else ""
    say(console, f"node {node['number']}: {node['label']}{op}; {node['kind']}, {node['cause']}")
    step = f"step {node['step']}" if node["step"] else "outside of the steps"
    where = f"{answer['hardware']}, {answer['mode']}: rank {node['rank']}, {node['resource']}"
    say(console, f"{where}, {step.replace('step step', 'step')}")
    at = f"{human_us(node['duration_us'])}, from {human_us(node['start_us'])} on"
    say(console, f"{at}; {_importance(node)}")
    if waits:
        after = (
            f"starts after node {waits['number']} ({waits['label']}) by its {waits['edge']} edge"
        )
        say(console, f"{after}, lag {human_us(waits['lag_us'])}: {waits['lag_source']}")
    figures: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for name, reason in reasons(answer["reason"]):
        _show_reason(console, name, reason)
        figures |= {tuple(each.values()): each for each in reason["figures"]}
    show_figures(console, list(figures.values()))


def _importance(node: Mapping[str, Any]) -> str:
    if node["on_critical_path"]:
        return "on the critical path of its step"
    if node["slack_us"] is None:
        return "no step waits for it"
    return f"not on the critical path: {human_us(node['slack_us'])} of slack"


def _show_reason(console: Console, name: str, reason: Mapping[str, Any]) -> None:
    console.print()
    say(console, f"{name}: {human_us(reason['duration_us'])}")
    say(console, f"formula: {reason['formula']}")
    terms = {key: value for key, value in reason["terms"].items() if value is not None}
    if not terms:
        return
    table = new_table("", "term", "value", texts=2)
    table.title = None
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    for key, value in terms.items():
        add(table, key, value if isinstance(value, str) else f"{value:,.10g}")
    show(console, table)
