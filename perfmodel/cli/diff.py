"""`perfmodel diff`: two traces or predictions side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.console import Console
from perfmodel.cli.options import DEFAULT_MAX_GB, max_bytes
from perfmodel.cli.output import FAILED, STDOUT, Output, check_target, working, wrote
from perfmodel.plot.names import named
from perfmodel.reporting.tables import Table, percent

if TYPE_CHECKING:
    from perfmodel.reporting.difference import Difference


MAX_SHOWN = 12
_COLUMNS = "name=;a_us=A:us;b_us=B:us;change_us=B - A:us;share=of A:s"
_TITLES = (
    *("Per step", "Critical path by kind", "On the critical path, by op", "Device time by family"),
    "Modules, by what they launch",
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
    target.write_result(compared, partial(_show, top=top), first=compared.completeness_line)
    if compared.failed:
        raise typer.Exit(FAILED)


def _show(console: Console, compared: Difference, top: int) -> None:
    from perfmodel.plot.names import short_name
    from perfmodel.reporting.sides import GROUPS

    console.say(compared.verdict)
    console.say(f"A: {compared.a.source} ({compared.a.hardware})")
    console.say(f"B: {compared.b.source} ({compared.b.hardware})")
    for line in compared.notes:
        console.say(line)
    for group, title in zip(GROUPS, _TITLES, strict=True):
        every, records = compared.of(group), []
        for change in every[(every.a_us != 0) | (every.b_us != 0)][:top].to_dict("records"):
            share = percent(change["change_us"], change["a_us"])
            share = share if share.startswith(("-", "0")) else f"+{share}"
            own = {"name": named(short_name(change["name"])), "share": share}
            records.append(change | own)
        if records:
            console.show(Table(title, _COLUMNS, records))
