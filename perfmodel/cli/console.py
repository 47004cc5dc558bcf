"""Lines and tables of a command: by Rich on a terminal, as plain text to a pipe or a file.

To load Rich and have it set the tables of a breakdown takes a sixth of the whole command (0.1 s),
so that a pipe does without, unless `COLUMNS` gives it a width.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.errors import Note
from perfmodel.reporting.tables import Column, Table, counted, one_line, width_of

if TYPE_CHECKING:
    import rich.console


_MIN_WIDTH, _MAX_WIDTH = 40, 1000
MIN_NAME = 12
"""Columns that a folded name keeps."""
GAP = 2
MAX_WARNINGS = 4
"""Lines of warnings below a table, where not all are wanted."""


def page_width() -> int | None:
    """Columns of what goes to no terminal, where `COLUMNS` gives them."""
    wanted = os.environ.get("COLUMNS", "")
    is_known = wanted.isascii() and wanted.isdigit() and _MIN_WIDTH <= int(wanted) <= _MAX_WIDTH
    return int(wanted) if is_known else None


class Console:
    """A page: the terminal, or a text that grows, of `width` columns where that is given."""

    def __init__(self, width: int | None = None, *, to_terminal: bool = False) -> None:
        self._text = io.StringIO()
        self._rich: rich.console.Console | None = None
        if to_terminal or width:
            from rich.console import Console

            self._rich = Console(
                file=None if to_terminal else self._text,
                width=None if to_terminal else width,
                color_system="auto" if to_terminal else None,
                highlight=False,
                markup=False,
                emoji=False,
            )

    @property
    def text(self) -> str:
        """What was written, lines without blanks at their ends; nothing of a terminal."""
        return "".join(f"{line.rstrip()}\n" for line in self._text.getvalue().splitlines())

    def print(self, text: str = "", *, style: str = "", whole: bool = False) -> None:
        """Text, on a page with a width broken between words unless `whole`."""
        if self._rich is None:
            self._text.write(f"{text}\n")
            return
        from rich.text import Text

        self._rich.print(Text(text, style=style), soft_wrap=whole)

    def say(self, text: str, *, style: str = "", whole: bool = False, before: str = "") -> None:
        """A line of text, whatever names are in it; nothing where it is empty."""
        if text:
            self.print(before + one_line(text), style=style, whole=whole)

    def show(self, *tables: Table) -> None:
        """Tables one below the other."""
        for table in tables:
            self.print()
            if self._rich is None:
                self._text.writelines(f"{line}\n" for line in table.lines())
            else:
                self._show_fitted(table, self._rich)

    def _show_fitted(self, table: Table, console: rich.console.Console) -> None:
        """What the page has room for: names are folded, then columns left out from the right."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        self.say(table.title, style="bold")
        rows = table.rows()
        cells = zip(table.columns, *rows, strict=True)
        least = [_least_width(column, texts) for column, *texts in cells]
        kept = list(range(len(least)))
        while sum(least[at] + GAP for at in kept) - GAP > console.width:
            rest = [at for at in kept[1:] if not table.columns[at].keep]
            if not rest:
                break
            kept.remove(rest[-1])
        shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for at in kept:
            column = table.columns[at]
            shown.add_column(
                column.head,
                justify="left" if column.is_text else "right",
                vertical="top",
                overflow="fold",
                no_wrap=column.form != "",
            )
        for row in rows:
            shown.add_row(*(row[at] for at in kept))
        console.print(shown)
        if len(kept) < len(least):
            dropped = [each.head for at, each in enumerate(table.columns) if at not in kept]
            self.say(f"(no room for: {', '.join(map(one_line, dropped))})")

    def show_cautions(self, cautions: Sequence[str]) -> None:
        """What makes the answer below doubtful."""
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
        counts = {
            "more warning": len(warnings) - len(shown),
            "note": 0 if every else len(notes),
        }
        parts = [counted(number, what) for what, number in counts.items() if number]
        if parts:
            if not shown:
                self.print()
            self.say(f"{' and '.join(parts)}: -v shows them")


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """What a column can be narrowed to: texts to a name that can be read, others not at all."""
    natural = max(map(width_of, (*column.head.split("\n"), *cells)))
    return natural if column.form else min(natural, MIN_NAME)
