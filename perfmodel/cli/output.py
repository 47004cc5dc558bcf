"""Where an answer goes and in which form: a table, JSON or CSV, to standard output or a file."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perfmodel.base.files import atomic_write, check_writable, is_stdout, suffix_of
from perfmodel.base.progress import Begin, silent
from perfmodel.cli.console import LINE, Console, page_width, terminal_console
from perfmodel.cli.options import Format
from perfmodel.errors import Note, TraceError, UsageError
from perfmodel.reporting.tables import Table, columns, one_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


FAILED = 1
"""Exit status where a check says no."""
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
_OTHER_SUFFIXES = (*FIGURE_SUFFIXES, ".html", ".tsv", ".xls", ".ods", ".xml", ".yaml", ".zip")
"""Of files that are no text for people, and that no answer is written as."""


_WRITTEN = {Format.TABLE: "the table, as text", Format.JSON: "JSON (docs/schemas describes it)"}
_WRITTEN |= {
    form: f"{name}, a row per line of the table"
    for form, name in {
        Format.CSV: "CSV",
        Format.MARKDOWN: "Markdown",
        Format.PARQUET: "Parquet",
        Format.WORKBOOK: "a workbook",
    }.items()
}


def wrote(path: Path, what: str) -> None:
    """Say on standard error what was written where, and what to do with it."""
    print(one_line(f"perfmodel: wrote {path}: {what}"), file=sys.stderr)


class Result(Protocol):
    """What most verbs answer with."""

    def to_dict(self) -> dict[str, Any]: ...
    def to_frame(self) -> pd.DataFrame: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Output:
    """The form and the place that `--format` and `-o` ask for, which every verb takes with this.

    Raises `PerfmodelError` when made, before any work, where a file cannot be written.
    """

    format: Format | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        suffix = suffix_of(self.output) if self.output else ""
        if self.format is None and suffix in _OTHER_SUFFIXES:
            written = ", ".join(f".{each}" for each in Format if each is not Format.TABLE)
            raise UsageError(f"-o {self.output}: an answer is written as {written}, else as text")
        if self.form is Format.WORKBOOK and find_spec("openpyxl") is None:
            where = self.output or "-f xlsx"
            raise UsageError(f"{where}: needs openpyxl, which is not installed; or CSV")
        if self.path:
            check_target(self.path)

    @property
    def form(self) -> Format:
        """By the suffix of the file where it is not said."""
        suffix = suffix_of(self.output).lstrip(".") if self.output else ""
        return self.format or (Format(suffix) if suffix in list(Format) else Format.TABLE)

    @property
    def path(self) -> Path | None:
        """The file; None for standard output."""
        return self.output if self.output and not is_stdout(self.output) else None

    def write(
        self,
        answer: Callable[[], dict[str, Any]],
        csv: Callable[[], str],
        table: Callable[[Console], object],
        warnings: Sequence[str] = (),
        cautions: Sequence[str] = (),
        first: str = "",
        hint: str = "",
    ) -> None:
        """Write the answer; each form is made only when it is wanted.

        `first` is a line above all else, `hint` says what a file is good for. JSON holds its own
        warnings; below a table they are part of it, those that make the answer doubtful
        (`cautions`) above it; with CSV and its like they go to standard error. Lines that only
        inform (`Note`) are shown with `-v`.
        """
        if self.form is Format.TABLE:
            self._put(self._page(table, warnings, cautions, first), hint)
            return
        if self.form is Format.JSON:
            self._put(json_text(answer()).encode(), hint)
            return
        self._put(FORMS[self.form](csv()) if self.form in FORMS else csv().encode(), hint)
        if first:
            print(one_line(f"perfmodel: {first}"), file=sys.stderr)
        for warning in warnings:
            if LINE.get().notes or not isinstance(warning, Note):
                print(one_line(f"perfmodel: warning: {warning}"), file=sys.stderr)

    def write_result(
        self, result: R, show: Callable[[Console, R], object], *lines: Any, **more: Any
    ) -> None:
        """Write an answer that can make its own dictionary and frame; the rest as of `write`."""
        self.write(
            result.to_dict,
            lambda: frame_csv(result.to_frame()),
            lambda console: show(console, result),
            *lines,
            **more,
        )

    def write_list(self, title: str, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write what there is to choose from; the first column is what one types."""
        first, *others = rows[0]
        heads = columns(";".join([f"{first}:name", *others]))
        texts = [{key: str(value) for key, value in row.items()} for row in rows]
        self.write(
            lambda: {"schema": schema, title.lower(): rows},
            lambda: rows_csv(rows),
            lambda console: console.show(Table(title, heads, texts, full_names=True)),
        )

    def _put(self, content: bytes, hint: str) -> None:
        """To the file, or to standard output."""
        if self.path is None and self.form not in FORMS:
            sys.stdout.write(content.decode())
            sys.stdout.flush()
            return
        with atomic_write(self.path or Path("-")) as file:
            file.write(content)
        if self.path:
            wrote(self.path, hint or _WRITTEN[self.form])

    def _page(
        self,
        table: Callable[[Console], object],
        warnings: Sequence[str],
        cautions: Sequence[str],
        first: str,
    ) -> bytes:
        to_terminal = not self.path and sys.stdout.isatty()
        console = terminal_console() if to_terminal else Console(page_width())
        console.say(first)
        console.show_cautions(cautions)
        table(console)
        below = [line for line in warnings if line not in cautions]
        console.show_warnings(below, every=LINE.get().notes)
        return (console.text or "\n").encode()


STDOUT = Output()


def json_text(answer: dict[str, Any]) -> str:
    """One line of JSON; NaN and infinities are errors, never written."""
    return json.dumps(answer, allow_nan=False) + "\n"


def rows_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """CSV of rows with the same keys, a header first; `columns` where there may be no row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def frame_csv(frame: pd.DataFrame) -> str:
    """CSV of a frame."""
    inert_frame = frame.copy(deep=False)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        inert_frame[name] = frame[name].map(_inert)
    return str(inert_frame.to_csv(index=False))


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: names in a trace are anybody's."""
    is_formula = isinstance(cell, str) and len(cell) > 1 and cell[0] in "=+-@\t\r"
    return f"'{cell}" if is_formula else cell


_MADE_INERT = re.compile(r"\A'(?=[=+\-@\t\r].)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def _frame(text: str) -> pd.DataFrame:
    """The frame of a CSV; of texts, only an empty cell is missing."""
    import pandas as pd

    if not text.strip():
        return pd.DataFrame()
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])


def _markdown(text: str) -> bytes:
    rows = [[_markdown_cell(each) for each in row] for row in csv.reader(io.StringIO(text)) if row]
    rows[1:1] = [["---"] * len(row) for row in rows[:1]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).encode()


def _markdown_cell(text: str) -> str:
    cell = " ".join(_MADE_INERT.sub("", text).split()).replace("\\", "\\\\")
    return re.sub(r"([|<`*])", r"\\\1", cell)


def _parquet(text: str) -> bytes:
    frame, content = _frame(text), io.BytesIO()
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        cells = frame[name].tolist()
        frame[name] = [_MADE_INERT.sub("", x) if isinstance(x, str) else x for x in cells]
    frame.to_parquet(content, index=False)
    return content.getvalue()


def _workbook(text: str) -> bytes:
    content = io.BytesIO()
    _frame(_CONTROL.sub("?", text)).to_excel(content, index=False, engine="openpyxl")
    return content.getvalue()


FORMS: Mapping[Format, Callable[[str], bytes]] = MappingProxyType(
    {Format.MARKDOWN: _markdown, Format.PARQUET: _parquet, Format.WORKBOOK: _workbook}
)
"""The CSV of an answer as files that other programs read."""


@contextmanager
def working(what: str) -> Iterator[Begin]:
    """A sign of life on standard error while work is done; nothing where it is no terminal.

    Gives what long work calls: it shows what is being done by now, how much of all is done, and
    how long the rest will take.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    import rich.console
    from rich.progress import (
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    share = TaskProgressColumn("{task.percentage:.0f} % done,", text_format_no_percentage="")
    left = TimeRemainingColumn(compact=True)
    parts = SpinnerColumn(), TextColumn("{task.description}"), share, left, TimeElapsedColumn()
    with Progress(*parts, console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def begin(part: str, done: int, total: int) -> None:
            if (total or None) != bar.tasks[task].total:  # another stage, with a pace of its own
                bar.reset(task, total=total or None, completed=done)
            bar.update(task, completed=done, description=f"{what}: {part}", refresh=True)

        yield begin


def refuse_cautions(source: str, cautions: Sequence[str]) -> None:
    """Raise `TraceError` with the first of them: what `--strict` asks for."""
    for line in cautions:
        raise TraceError(f"{source}: {line} (--strict)")


def save_figure(path: Path | None, draw: Callable[[], Figure]) -> None:
    """Draw and write a figure where an option asks for it."""
    if path is not None:
        save_drawn(path, draw())


def save_drawn(path: Path, figure: Figure) -> None:
    """Write a figure and say so."""
    from perfmodel.plot import save

    save(figure, path)
    wrote(path, "the figure")


def quiet_figures() -> None:
    """Keep Matplotlib's remarks on a home that it cannot write to off the screen."""
    import logging

    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def check_target(path: Path) -> None:
    """Raise `PerfmodelError` where a file at `path` cannot be written, or is what another word of
    the command line names: an input, or another output."""
    if is_stdout(path):
        return
    check_writable(path, None)
    if sum(_is_named(word, path) for word in LINE.get().words) > 1:
        raise UsageError(f"{path}: is the input, or two outputs; write elsewhere")


def _is_named(word: str, path: Path) -> bool:
    """Whether a word names the file: alone, as `--option=FILE`, `-oFILE`, or `FILE.py:CLASS`."""
    forms = (word, word.removeprefix("-o"), word.partition("=")[2], word.rpartition(":")[0])
    for named in forms:
        if os.path.exists(named) and path.exists():
            if os.path.samefile(named, path):
                return True
        elif named and os.path.realpath(named) == os.path.realpath(path):
            return True
    return False


def check_figure(path: Path | None, option: str = "--figure") -> None:
    """Raise `PerfmodelError` where no figure can be written to `path`; said before any is drawn."""
    if path is None:
        return
    quiet_figures()
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise UsageError(
            f"{option} {path}: a figure is one of {', '.join(FIGURE_SUFFIXES)}, by its suffix"
        )
    check_target(path)
