"""A page of lines and tables: the terminal's width, that of `COLUMNS`, or as wide as its lines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.units import counted
from perfmodel.errors import Note
from perfmodel.reporting import tables
from perfmodel.reporting.predicted import assumed_text
from perfmodel.reporting.tables import Block, Record, Table, one_line

_MIN_WIDTH, _MAX_WIDTH = 40, 1000
MAX_WARNINGS = 4
"""Lines of warnings below a table, where not all are wanted."""
_STYLES = {"bold": "\x1b[1m{}\x1b[0m", "yellow": "\x1b[33m{}\x1b[0m"}


@dataclass(frozen=True)
class Line:
    """A command line: its words, whether tables come with notes (`-v`) and with assumed hardware
    values (`--sources`), both of which may stand anywhere on it, and the verb's arguments."""

    words: tuple[str, ...] = ()
    notes: bool = False
    sources: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)


_NO_LINE = Line()
LINE: ContextVar[Line] = ContextVar("LINE", default=_NO_LINE)


def page(*, to_file: bool = False) -> Console:
    """A page as wide as the terminal, with colours unless `NO_COLOR` or a dumb one forbids them;
    where it goes to none, of as many columns as `COLUMNS` says."""
    if to_file or not sys.stdout.isatty():
        wanted = os.environ.get("COLUMNS", "")
        is_known = wanted.isascii() and wanted.isdigit() and _MIN_WIDTH <= int(wanted) <= _MAX_WIDTH
        return Console(int(wanted) if is_known else None)
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
    width = shutil.get_terminal_size((80, 24)).columns
    return Console(max(width, _MIN_WIDTH), coloured=not is_plain)


def assumed(name: str, figures: Sequence[Mapping[str, Any]]) -> str:
    """Of `figures` (`Read.to_dict`) those that are guesses, or were not checked."""
    return assumed_text(name, figures, in_full=LINE.get().sources)


def alike(
    records: Iterable[Record], shown: Callable[[Record], Record]
) -> list[tuple[dict[str, Any], list[Record]]]:
    """Records of tables of which the same is `shown`, as one row each: that, under the first name
    and how many more (`0 and 25 more`); and the records themselves."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for each in records:
        found.setdefault(tuple(shown(each).items()), []).append(each)
    rows = []
    for row, own in found.items():
        first, rest = own[0]["table"], len(own) - 1
        rows.append(
            ({**dict(row), "table": f"{first} and {rest} more" if rest else str(first)}, own)
        )
    return rows


class Console:
    """A page that grows, of `width` columns where that is given."""

    def __init__(self, width: int | None = None, *, coloured: bool = False) -> None:
        self._width, self._coloured = width, coloured
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """What was written, lines without blanks at their ends."""
        return "".join(f"{line}\n" for line in self._lines)

    def show(self, *blocks: Block) -> None:
        """Tables, and lines of text, whatever names are in them; nothing of an empty line."""
        for block in blocks:
            if isinstance(block, Table):
                self._lines.append("")
                self._say(block.title, "bold")
                self._lines += [line.rstrip() for line in block.lines(self._width)]
                if block.left_out:
                    self._say(f"and {block.left_out} more: --format csv or json has all")
                continue
            if block.startswith("\n"):
                self._lines.append("")
            self._say(block, "bold" * isinstance(block, tables.Heading))

    def _say(self, block: str, style: str = "") -> None:
        """A line, on a page with a width broken between words unless it is typed."""
        text, is_typed = one_line(block), isinstance(block, tables.Command)
        if not text:
            return
        lines = [f"    {text}"] if is_typed else [text]
        if self._width is not None and not is_typed:
            lines = tables.folded(text, self._width)
        form = _STYLES[style] if style and self._coloured else "{}"
        self._lines += [form.format(line.rstrip()) for line in lines]

    def show_cautions(self, cautions: Sequence[str]) -> None:
        if cautions:
            self._lines.append("")
        for line in cautions:
            self._say(f"warning: {line}", "yellow")

    def show_warnings(self, lines: Sequence[str], *, every: bool) -> None:
        """What was dropped, repaired or guessed, and in a line how much else there is; with `every`
        all of it, notes too."""
        notes = [line for line in lines if isinstance(line, Note)]
        warnings = [line for line in lines if not isinstance(line, Note)]
        shown = warnings if every else warnings[:MAX_WARNINGS]
        self.show_cautions(shown)
        if every and notes:
            self.show("\n", *(f"note: {note}" for note in notes))
        hidden = len(warnings) - len(shown), 0 if every else len(notes)
        counts = zip(hidden, ("more warning", "note"), strict=True)
        if parts := [counted(number, what) for number, what in counts if number]:
            above = "" if shown else "\n"
            self.show(f"{above}{' and '.join(parts)}: -v")
