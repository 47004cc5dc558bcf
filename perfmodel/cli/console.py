"""Lines and tables of text. Rich sets them for terminals, and whatever is wider than the page.

What fits is set here, in the same way: to load Rich and to have it set the tables of a breakdown
takes a tenth of the whole command.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from perfmodel.cli.failures import one_line

if TYPE_CHECKING:
    import rich.console
    import rich.table


FILE_WIDTH = 100
"""Columns of a page that goes to no terminal, unless `COLUMNS` says otherwise."""
_LEAST_WIDTH, _MOST_WIDTH = 40, 1000
GAP = 2
"""Blanks between two columns."""
_BETWEEN_TABLES = 4
_NARROW = str.maketrans("", "", "…–─µ×")
"""Characters of our texts that take one column."""


def file_width() -> int:
    """Columns of what goes to no terminal."""
    asked = os.environ.get("COLUMNS", "")
    known = asked.isascii() and asked.isdigit() and _LEAST_WIDTH <= int(asked) <= _MOST_WIDTH
    return int(asked) if known else FILE_WIDTH


def width_of(text: str) -> int:
    """Columns that a text takes on a screen."""
    if text.isascii() or text.translate(_NARROW).isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


@dataclass
class Column:
    """The head of a column, where its cells stand, and what becomes of those that do not fit."""

    head: str
    justify: Literal["left", "right"]
    no_wrap: bool
    overflow: Literal["ellipsis", "fold"]

    def padded(self, text: str, width: int) -> str:
        blanks = " " * (width - width_of(text))
        return text + blanks if self.justify == "left" else blanks + text


@dataclass
class Table:
    """A title, columns and rows of cells; Rich sets tables with texts of several lines."""

    title: str
    columns: list[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def texts(self) -> Iterator[str]:
        """Heads and cells."""
        yield from (column.head for column in self.columns)
        yield from chain.from_iterable(self.rows)

    def column_widths(self) -> list[int]:
        """Of the widest cells; where the title needs more room, each gets some in proportion."""
        cells = zip([column.head for column in self.columns], *self.rows, strict=True)
        widths = [max(map(width_of, column)) for column in cells]
        widths = [*(width + 1 for width in widths[:-1]), max(widths[-1], 1)]
        rest, missing = sum(widths), len(self.title) - sum(widths) - len(widths) + 1
        for at, width in enumerate(widths):
            more = ceil(width * max(missing, 0) / rest)
            widths[at], rest, missing = width + more, rest - width, missing - more
        return [*(width - 1 for width in widths[:-1]), widths[-1]]

    def lines(self, widths: list[int]) -> Iterator[str]:
        """As text that fits."""
        if self.title:
            yield one_line(self.title)
        heads = tuple(column.head for column in self.columns)
        for at, row in enumerate((heads, *self.rows)):
            cells = zip(self.columns, row, widths, strict=True)
            yield (" " * GAP).join(column.padded(cell, width) for column, cell, width in cells)
            if not at:
                yield "─" * _whole(widths)

    def as_rich(self) -> rich.table.Table:
        """The same for Rich to set."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(one_line(self.title)),
            min_width=len(self.title),
            title_style="bold",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            header_style="",
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for each in self.columns:
            table.add_column(
                each.head, justify=each.justify, no_wrap=each.no_wrap, overflow=each.overflow
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def _whole(widths: Iterable[int]) -> int:
    """Columns of a table with columns of these widths."""
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)


class Console:
    """A page: the terminal, or a text that grows."""

    def __init__(self, width: int | None = None, *, to_terminal: bool = False) -> None:
        self._file = io.StringIO()
        self._terminal: rich.console.Console | None = None
        if to_terminal:
            from rich.console import Console

            self._terminal = Console(highlight=False, markup=False, emoji=False)
        self.width = self._terminal.width if self._terminal else width or file_width()

    @property
    def text(self) -> str:
        """What was written, lines without blanks at their ends; nothing of a terminal."""
        return "".join(f"{line.rstrip()}\n" for line in self._file.getvalue().splitlines())

    def print(self, text: str = "", *, style: str = "", soft_wrap: bool = False) -> None:
        """Text; unless `soft_wrap`, in lines no longer than the page is wide."""
        if self._terminal is None:
            if soft_wrap or width_of(text) <= self.width:
                self._file.write(f"{text}\n")
                return
            words = text.split(" ")
            if text.isascii() and "" not in words and max(map(len, words)) <= self.width:
                lines = wrap(text, self.width, break_long_words=False, break_on_hyphens=False)
                self._file.write("\n".join(lines) + "\n")
                return
        from rich.text import Text

        self._by_rich(Text(text, style=style), soft_wrap=soft_wrap)

    def show(self, *tables: Table) -> None:
        """Tables side by side where they fit whole, else one below the other."""
        widths = [table.column_widths() for table in tables]
        whole = [_whole(each) for each in widths]
        fits = sum(whole) + _BETWEEN_TABLES * (len(tables) - 1) <= self.width
        is_plain = not any("\n" in text for table in tables for text in table.texts())
        if len(tables) > 1 and not fits:
            for table in tables:
                self.show(table)
            return
        self.print()
        if self._terminal is None and fits and is_plain:
            columns = [table.lines(each) for table, each in zip(tables, widths, strict=True)]
            for row in zip_longest(*columns, fillvalue=""):
                before = zip(row[:-1], whole[:-1], strict=True)
                padded = [cell + " " * (width - width_of(cell)) for cell, width in before]
                self._file.write((" " * _BETWEEN_TABLES).join([*padded, row[-1]]) + "\n")
        elif len(tables) == 1:
            self._by_rich(tables[0].as_rich())
        else:
            from rich.table import Table as RichTable

            side_by_side = RichTable.grid(padding=(0, _BETWEEN_TABLES))
            side_by_side.add_row(*(table.as_rich() for table in tables))
            self._by_rich(side_by_side)

    def _by_rich(self, what: object, *, soft_wrap: bool = False) -> None:
        from rich.console import Console

        console = self._terminal or Console(
            file=self._file,
            width=self.width,
            color_system=None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        console.print(what, soft_wrap=soft_wrap)
