"""Lines and tables of text, by the width of the page: the terminal's, or `COLUMNS`.

Tables are set here, for terminals and for files: to load Rich and to have it set the tables of a
breakdown takes a tenth of the whole command. Rich sets colours, and long lines of text.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from perfmodel.cli.failures import one_line

if TYPE_CHECKING:
    import rich.console


FILE_WIDTH = 100
"""Columns of a page that goes to no terminal, unless `COLUMNS` says otherwise."""
_MIN_WIDTH, _MAX_WIDTH = 40, 1000
GAP = 2
"""Blanks between two columns."""
_BETWEEN_TABLES = 4
MIN_NAME = 12
"""Columns that a cut name keeps."""
_NARROW = str.maketrans("", "", "…–─µ×")
"""Characters of our texts that take one column."""


def file_width() -> int:
    """Columns of what goes to no terminal."""
    asked = os.environ.get("COLUMNS", "")
    known = asked.isascii() and asked.isdigit() and _MIN_WIDTH <= int(asked) <= _MAX_WIDTH
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
    keep: bool = False
    """Stays on a page however narrow; others are left out from the right."""

    def padded(self, text: str, width: int) -> str:
        blanks = " " * (width - width_of(text))
        return text + blanks if self.justify == "left" else blanks + text

    def least_width(self, natural: int) -> int:
        """What it can be narrowed to: texts to a name that can be read, numbers not at all."""
        return natural if self.no_wrap else min(natural, MIN_NAME)

    def cell_lines(self, text: str, width: int) -> list[str]:
        """A cell as lines of at most `width`."""
        from perfmodel.plot.names import shortened

        if all(width_of(line) <= width for line in text.split("\n")):
            return text.split("\n")
        return broken(text, width) if self.overflow == "fold" else [shortened(text, width)]


_WORD = re.compile(r"[^-_./\s]*(?:[-_./\s]+|$)")


def broken(name: str, width: int) -> list[str]:
    """`name` in lines of at most `width` characters, between its words where that is possible."""
    lines = [""]
    for word in _WORD.findall(name):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


@dataclass
class Table:
    """A title, columns and rows of cells, of which a page shows what it has room for."""

    title: str
    columns: list[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def natural_widths(self) -> list[int]:
        """Of the widest line in each column."""
        cells = zip([column.head for column in self.columns], *self.rows, strict=True)
        return [
            max((width_of(line) for cell in column for line in cell.split("\n")), default=0)
            for column in cells
        ]

    def column_widths(self) -> list[int]:
        """Of the widest cells; where the title needs more room, each gets some in proportion."""
        natural = self.natural_widths()
        widths = [*(width + 1 for width in natural[:-1]), max(natural[-1], 1)]
        rest, missing = sum(widths), len(self.title) - sum(widths) - len(widths) + 1
        for at, width in enumerate(widths):
            more = ceil(width * max(missing, 0) / rest)
            widths[at], rest, missing = width + more, rest - width, missing - more
        return [*(width - 1 for width in widths[:-1]), widths[-1]]

    def within(self, width: int) -> tuple[Table, list[int], list[str]]:
        """What fits into `width`, how wide its columns are, and the heads of those left out.

        Columns stand in order of importance: the last go first. Texts are narrowed, the widest
        first, and never so far that two names become one; numbers stay whole.
        """
        widths = self.column_widths()
        if _whole(widths) <= width:
            return self, widths, []
        natural = self.natural_widths()
        least = [each.least_width(n) for each, n in zip(self.columns, natural, strict=True)]
        kept = list(range(len(self.columns)))
        while _whole(least[at] for at in kept) > width:
            more = [at for at in kept[1:] if not self.columns[at].keep]
            if not more:
                break
            kept.remove(more[-1])
        dropped = [each.head for at, each in enumerate(self.columns) if at not in kept]
        columns = [self.columns[at] for at in kept]
        rows = [tuple(row[at] for at in kept) for row in self.rows]
        widths, least = [natural[at] for at in kept], [least[at] for at in kept]
        while _whole(widths) > width:
            wide = [at for at in range(len(kept)) if widths[at] > least[at]]
            if not wide:
                break
            widths[max(wide, key=lambda at: widths[at])] -= 1
        for at, each in enumerate(columns):
            names = {row[at] for row in rows}
            if len({tuple(each.cell_lines(name, widths[at])) for name in names}) < len(names):
                columns[at] = replace(each, overflow="fold")
        return Table(self.title, columns, rows), widths, dropped

    def lines(self, widths: list[int]) -> Iterator[str]:
        """As text; heads of several lines end on one, cells begin on one."""
        if self.title:
            yield from broken(one_line(self.title), max(_whole(widths), len(self.title)))
        heads = tuple(column.head for column in self.columns)
        for at, row in enumerate((heads, *self.rows)):
            cells = [
                column.cell_lines(cell, width)
                for column, cell, width in zip(self.columns, row, widths, strict=True)
            ]
            height = max(map(len, cells))
            if not at:
                cells = [[""] * (height - len(cell)) + cell for cell in cells]
            for line in zip_longest(*cells, fillvalue=""):
                parts = zip(self.columns, line, widths, strict=True)
                yield (" " * GAP).join(column.padded(part, width) for column, part, width in parts)
            if not at:
                yield "─" * _whole(widths)


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
        if len(tables) > 1 and not fits:
            for table in tables:
                self.show(table)
            return
        self.print()
        dropped: list[str] = []
        if not fits:
            (shown, width, dropped) = tables[0].within(self.width)
            tables, widths, whole = (shown,), [width], [_whole(width)]
        columns = [table.lines(each) for table, each in zip(tables, widths, strict=True)]
        titled = any(table.title for table in tables)
        for at, row in enumerate(zip_longest(*columns, fillvalue="")):
            before = zip(row[:-1], whole[:-1], strict=True)
            padded = [cell + " " * (width - width_of(cell)) for cell, width in before]
            line = (" " * _BETWEEN_TABLES).join([*padded, row[-1]])
            self._line(line, style="bold" if titled and not at else "")
        if dropped:
            heads = ", ".join(one_line(head) for head in dropped)
            self._line(f"(no room for: {heads})")

    def _line(self, text: str, style: str = "") -> None:
        """A line as it is."""
        if self._terminal is None:
            self._file.write(f"{text}\n")
        else:
            from rich.text import Text

            self._terminal.print(Text(text, style=style), soft_wrap=True)

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
