"""Where an answer goes and in which form: a table, JSON or CSV, to standard output or a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perfmodel.cli.failures import one_line
from perfmodel.cli.options import Format
from perfmodel.errors import Note, PerfmodelError, TraceError, UsageError
from perfmodel.files import check_writable, write_text
from perfmodel.progress import Begin, Pace, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.cli.console import Console


FAILED = 1
"""Exit status where a check says no."""
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Shown:
    """What a table comes with on top: lines that only inform (`-v`), figures (`--sources`)."""

    notes: bool = False
    sources: bool = False


_USUAL = Shown()
SHOWN: ContextVar[Shown] = ContextVar("SHOWN", default=_USUAL)
"""Of this command line: both words may stand anywhere on it."""
WORDS: ContextVar[tuple[str, ...]] = ContextVar("WORDS", default=())
"""Of this command line, as they were given."""
_FORMS = {
    Format.TABLE: "the table, as text",
    Format.JSON: "JSON (docs/schemas describes it)",
    Format.CSV: "CSV, a row per line of the table",
}


def wrote(path: Path, what: str) -> None:
    """Say on standard error what was written where, and what to do with it."""
    print(one_line(f"perfmodel: wrote {path}: {what}"), file=sys.stderr)


class Result(Protocol):
    """What most verbs answer with."""

    def to_dict(self) -> dict[str, Any]: ...
    def to_frame(self) -> pd.DataFrame: ...


R = TypeVar("R", bound=Result)


class Output:
    """The form and the place that `--format` and `-o` ask for.

    `hint` says what a file of the answer is good for. `with_table` shows the table too where JSON
    or CSV goes to a file. Raises `PerfmodelError` when made, before any work, where `path` cannot
    be written.
    """

    def __init__(
        self, form: Format | None, path: Path | None, *, hint: str = "", with_table: bool = False
    ):
        suffix = path.suffix.lstrip(".").lower() if path else ""
        self.form = form or (Format(suffix) if suffix in ("json", "csv") else Format.TABLE)
        self.path = path
        self._hint, self._with_table = hint, with_table
        if path:
            check_target(path)

    def write(
        self,
        *,
        answer: Callable[[], dict[str, Any]],
        csv: Callable[[], str],
        table: Callable[[Console], None],
        warnings: list[str],
        cautions: Sequence[str] = (),
        first: str = "",
    ) -> None:
        """Write the answer; each form is made only when it is asked for.

        `first` is a line above all else. JSON holds its own warnings; below a table they are part
        of it, those that make the answer doubtful (`cautions`) above it; beside CSV they go to
        standard error. Lines that only inform (`Note`) are shown with `-v`.
        """
        if self.form is Format.TABLE:
            self._table(table, warnings, cautions, first)
            return
        if self.path and self._with_table:
            Output(Format.TABLE, None)._table(table, warnings, cautions, first)
        self.text(json_text(answer()) if self.form is Format.JSON else csv())
        if self.form is Format.CSV:
            if first:
                print(one_line(f"perfmodel: {first}"), file=sys.stderr)
            for warning in warnings:
                if SHOWN.get().notes or not isinstance(warning, Note):
                    print(one_line(f"perfmodel: warning: {warning}"), file=sys.stderr)

    def write_result(
        self,
        result: R,
        show: Callable[[Console, R], None],
        warnings: Sequence[str] = (),
        cautions: Sequence[str] = (),
        first: str = "",
    ) -> None:
        """Write an answer that can make its own dictionary and frame."""
        self.write(
            answer=result.to_dict,
            csv=lambda: frame_csv(result.to_frame()),
            table=lambda console: show(console, result),
            warnings=list(warnings),
            cautions=cautions,
            first=first,
        )

    def write_list(self, title: str, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write what there is to choose from: rows whose first three columns are texts."""

        def table(console: Console) -> None:
            from perfmodel.cli.tables import filled

            cells = [list(map(str, row.values())) for row in rows]
            console.show(filled(title, list(rows[0]), cells, texts=3))

        self.write(
            answer=lambda: {"schema": schema, title.lower(): rows},
            csv=lambda: rows_csv(rows),
            table=table,
            warnings=[],
        )

    def text(self, text: str) -> None:
        """Write `text` to the file or to standard output."""
        if self.path:
            write_text(self.path, text)
            wrote(self.path, self._hint or _FORMS[self.form])
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise PerfmodelError(
                f"standard output: cannot be written: {error.strerror or error}"
            ) from None

    def _table(
        self,
        table: Callable[[Console], None],
        warnings: list[str],
        cautions: Sequence[str],
        first: str,
    ) -> None:
        from perfmodel.cli.console import Console
        from perfmodel.cli.tables import say, show_cautions, show_warnings

        to_terminal = not self.path and sys.stdout.isatty()
        console = Console(to_terminal=to_terminal)
        if first:
            say(console, first)
        show_cautions(console, cautions)
        table(console)
        below = [line for line in warnings if line not in cautions]
        show_warnings(console, below, every=SHOWN.get().notes)
        if not to_terminal:
            self.text(console.text or "\n")


def json_text(answer: dict[str, Any]) -> str:
    """One line of JSON; NaN and infinities are errors, never written."""
    return json.dumps(answer, allow_nan=False) + "\n"


def rows_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """CSV of rows with the same keys, a header first; `columns` where there may be no row."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def frame_csv(frame: pd.DataFrame) -> str:
    """CSV of a frame."""
    inert_frame = frame.copy(deep=False)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        inert_frame[name] = frame[name].map(inert)
    return str(inert_frame.to_csv(index=False))


def inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: names in a trace are anybody's."""
    is_formula = isinstance(cell, str) and len(cell) > 1 and cell[0] in "=+-@\t\r"
    return f"'{cell}" if is_formula else cell


@contextmanager
def working(what: str) -> Iterator[Begin]:
    """A sign of life on standard error while work is done; nothing where it is no terminal.

    Gives what long work calls: it shows what is being done by now, how much of all is done, and
    how long the rest will take.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.text import Text

    pace = Pace()

    class Now(ProgressColumn):
        def render(self, task: Task) -> Text:
            told = pace.told(monotonic())
            return Text(f"{task.description} ({told})" if told else task.description)

    def begin(part: str, done: int, total: int) -> None:
        pace.reached(done, total, monotonic())
        bar.update(task, description=f"{what}: {part}")

    columns = SpinnerColumn(), Now(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
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
    check_writable(path, None)
    if sum(_is_named(word, path) for word in WORDS.get()) > 1:
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
