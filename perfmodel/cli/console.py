"""A page of lines and tables: the terminal's width, that of `COLUMNS`, or as wide as its lines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from perfmodel.errors import Note
from perfmodel.reporting import tables
from perfmodel.reporting.predicted import assumed_text
from perfmodel.reporting.tables import Block, Table, counted, one_line

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


def page_width() -> int | None:
    """Columns of what goes to no terminal, where `COLUMNS` gives them."""
    wanted = os.environ.get("COLUMNS", "")
    is_known = wanted.isascii() and wanted.isdigit() and _MIN_WIDTH <= int(wanted) <= _MAX_WIDTH
    return int(wanted) if is_known else None


def terminal_console() -> Console:
    """A page for the terminal, with colours unless `NO_COLOR` or a dumb terminal forbids them."""
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
    width = shutil.get_terminal_size((80, 24)).columns
    return Console(max(width, _MIN_WIDTH), coloured=not is_plain and sys.stdout.isatty())


class Console:
    """A page that grows, of `width` columns where that is given."""

    def __init__(self, width: int | None = None, *, coloured: bool = False) -> None:
        self._width, self._coloured = width, coloured
        self._lines: list[str] = []
        self.cautions: Sequence[str] = ()
        """What makes the answer doubtful, which stands right below the verdict."""

    @property
    def text(self) -> str:
        """What was written, lines without blanks at their ends."""
        return "".join(f"{line}\n" for line in self._lines)

    def print(self, text: str = "", *, style: str = "", whole: bool = False) -> None:
        """Text, on a page with a width broken between words unless `whole`."""
        form = _STYLES[style] if style and self._coloured else "{}"
        lines = [text] if whole or self._width is None else tables.folded(text, self._width)
        self._lines += [form.format(line.rstrip()) for line in lines]

    def say(self, text: str, *, style: str = "", whole: bool = False, before: str = "") -> None:
        """A line of text, whatever names are in it; nothing where it is empty."""
        if text:
            self.print(before + one_line(text), style=style, whole=whole)

    def show(self, *tables: Table) -> None:
        for table in tables:
            self.print()
            self.say(table.title, style="bold")
            for line in table.lines(self._width):
                self.print(line, whole=True)

    def verdict(self, text: str) -> None:
        """The answer in one sentence, and below it what makes it doubtful."""
        self.say(text, style="bold")
        self.show_cautions(self.cautions)

    def show_cautions(self, cautions: Sequence[str]) -> None:
        if cautions:
            self.print()
        for line in cautions:
            self.say(f"warning: {line}", style="yellow")

    def show_warnings(self, lines: Sequence[str], *, every: bool) -> None:
        """What was dropped, repaired or guessed, and in a line how much else there is; with `every`
        all of it, notes too."""
        notes = [line for line in lines if isinstance(line, Note)]
        warnings = [line for line in lines if not isinstance(line, Note)]
        shown = warnings if every else warnings[:MAX_WARNINGS]
        self.show_cautions(shown)
        if every and notes:
            self.print()
            for note in notes:
                self.say(f"note: {note}")
        hidden = len(warnings) - len(shown), 0 if every else len(notes)
        counts = zip(hidden, ("more warning", "note"), strict=True)
        if parts := [counted(number, what) for number, what in counts if number]:
            if not shown:
                self.print()
            self.say(f"{' and '.join(parts)}: -v shows them")

    def say_assumed(self, name: str, figures: Sequence[Mapping[str, Any]]) -> None:
        """Of `figures` (`Read.to_dict`) those that are guesses, or were not checked."""
        self.say(assumed_text(name, figures, in_full=LINE.get().sources))

    def show_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if isinstance(block, Table):
                self.show(block)
                continue
            if block.startswith("\n"):
                self.print()
            is_typed, style = (
                isinstance(block, tables.Command),
                "bold" * isinstance(block, tables.Heading),
            )
            self.say(block, style=style, whole=is_typed, before="    " * is_typed)

    def show_read(self, title: str, read: Sequence[Mapping[str, Any]]) -> None:
        """A row for each figure or coefficient that was read, with its source."""
        if read:
            every = ("part", "figure", "name", "value", "unit", "source")
            typed = ("part", "figure", "name", "unit")
            heads = ";".join(
                f"{key}:name" if key in typed else key for key in every if key in read[0]
            )
            records = [dict(each) | {"value": tables.number_text(each["value"])} for each in read]
            self.show(Table(title, heads, records, full_names=True))
