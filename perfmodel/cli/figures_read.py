"""Figures of the hardware that an answer follows from, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from perfmodel.cli.failures import one_line
from perfmodel.cli.tables import add, new_table, show
from perfmodel.hardware.reads import ASSUMED, RECALLED

SHOWN = ("part", "figure", "value", "unit", "source")
SOURCES = "sources: perfmodel hardware NAME, or --format json"


def say_assumed(console: Console, name: str, figures: Iterable[Mapping[str, Any]]) -> None:
    """Of `figures` (`Read.to_dict`) those that are assumed, with their values, or recalled; with
    their parts where several have a figure of that name."""
    listed = list(figures)
    count = Counter(each["figure"] for each in listed)
    parts = [
        f"{grounds}: {', '.join(named)}"
        for grounds in (ASSUMED, RECALLED)
        if (
            named := [
                _named(each, count[each["figure"]] > 1)
                for each in listed
                if each["grounds"] == grounds
            ]
        )
    ]
    if parts:
        console.print(Text(one_line(f"{name}: figures {'; '.join(parts)} ({SOURCES})")))


def show_figures(console: Console, figures: Sequence[Mapping[str, Any]]) -> None:
    """A row for each, with its source."""
    if not figures:
        return
    table = new_table("Figures read", *SHOWN, texts=len(SHOWN))
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for each in figures:
        add(table, *(_text(each[name]) for name in SHOWN))
    show(console, table)


def _named(figure: Mapping[str, Any], is_one_of_several: bool) -> str:
    part = f"{figure['part']} " if is_one_of_several else ""
    return f"{part}{figure['figure']} {_text(figure['value'])}"


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
