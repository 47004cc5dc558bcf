"""Where an answer goes and in which form: a table, JSON or CSV, to standard output or a file."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from perfmodel.base.answers import Begin, silent
from perfmodel.base.files import atomic_write, check_writable, is_stdout, suffix_of, write_text
from perfmodel.base.registry import library
from perfmodel.cli.console import LINE, page
from perfmodel.cli.options import Format
from perfmodel.errors import Note, TraceError, UsageError
from perfmodel.reporting.tables import Block, Table, Verdict, columns, one_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Rows: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]]

FAILED = 1
"""Exit status where a check says no."""
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
_OTHER_SUFFIXES = (*FIGURE_SUFFIXES, ".html", ".tsv", ".xls", ".ods", ".xml", ".yaml", ".zip")
"""Of files that are no text for people, and that no answer is written as."""
_ROWS = "a row per line of the table"
_WRITTEN = {
    Format.TABLE: "the table, as text",
    Format.JSON: "JSON (docs/schemas describes it)",
    Format.CSV: f"CSV, {_ROWS}",
    Format.MARKDOWN: f"Markdown, {_ROWS}",
    Format.PARQUET: f"Parquet, {_ROWS}",
    Format.WORKBOOK: f"a workbook, {_ROWS}",
    Format.BRIEF: "JSON of 2 kB at most (docs/schemas/brief.json)",
    Format.GITHUB: "an annotation, for the log of a job on GitHub",
}
_WITHOUT_SUFFIX = (Format.TABLE, Format.BRIEF, Format.GITHUB)
_HOW = re.compile(r"(--(format|output)=|-[fo]).+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Result(Protocol):
    """What most verbs answer with."""

    def to_dict(self) -> dict[str, Any]: ...
    def to_frame(self) -> pd.DataFrame: ...


_NEEDS = {Format.WORKBOOK: "openpyxl", Format.PARQUET: "pyarrow"}
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
            written = ", ".join(f".{each}" for each in Format if each not in _WITHOUT_SUFFIX)
            raise UsageError(f"-o {self.output}: an answer is written as {written}, else as text")
        if self.form in _NEEDS:
            library(_NEEDS[self.form])
        if self.path:
            check_target(self.path)

    @property
    def form(self) -> Format:
        """By the suffix of the file where it is not said."""
        suffix = suffix_of(self.output).lstrip(".") if self.output else ""
        is_form = suffix in list(Format) and suffix not in _WITHOUT_SUFFIX
        return self.format or (Format(suffix) if is_form else Format.TABLE)

    @property
    def path(self) -> Path | None:
        """The file; None for standard output."""
        return self.output if self.output and not is_stdout(self.output) else None

    def write(
        self,
        answer: Callable[[], dict[str, Any]],
        rows: Callable[[], Rows],
        blocks: Callable[[], Iterable[Block]],
        warnings: Sequence[str] = (),
        cautions: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        """Write the answer; each form is made only when it is wanted.

        `hint` says what a file is good for. JSON holds its own warnings; on a page for people those
        that make the answer doubtful (`cautions`) stand below its verdict, others follow; with CSV
        and its like they go to standard error. Lines that only inform (`Note`) are shown with `-v`.
        """
        notes = LINE.get().notes
        if self.form is Format.TABLE:
            console = page(to_file=self.path is not None)
            for block in blocks():
                console.show(block)
                if isinstance(block, Verdict):
                    console.show_cautions(cautions)
            console.show_warnings([line for line in warnings if line not in cautions], every=notes)
            self._put((console.text or "\n").encode(), hint)
        elif self.form in _OF_ANSWER:
            self._put((_OF_ANSWER[self.form](answer()) + "\n").encode(), hint)
        else:
            self._put(_FORMS[self.form](rows()), hint)
            for line in dict.fromkeys([*cautions, *warnings]):
                if notes or not isinstance(line, Note):
                    print(one_line(f"perfmodel: warning: {line}"), file=sys.stderr)

    def write_result(
        self, result: R, blocks: Callable[[R], Iterable[Block]], *lines: Any, **more: Any
    ) -> None:
        """Write an answer that can make its own dictionary and frame; the rest as of `write`."""
        self.write(result.to_dict, result.to_frame, partial(blocks, result), *lines, **more)

    def write_list(self, title: str, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write what there is to choose from; the first column is what one types."""
        first, *others = rows[0]
        heads = columns(";".join([f"{first}:name", *others]))
        texts = [{key: str(value) for key, value in row.items()} for row in rows]
        table = Table(title, heads, texts, full_names=True)
        self.write(lambda: {"schema": schema, title.lower(): rows}, lambda: rows, lambda: [table])

    def _put(self, content: bytes, hint: str) -> None:
        if self.path is None and self.form not in (Format.PARQUET, Format.WORKBOOK):
            sys.stdout.write(content.decode())
            sys.stdout.flush()
            return
        with atomic_write(self.path or Path("-")) as file:
            file.write(content)
        if self.path:
            wrote(self.path, hint or _WRITTEN[self.form])


STDOUT = Output()


def csv_text(rows: Rows, *, inert: bool = True) -> str:
    """CSV of a frame or of rows with the same keys, a header first; `inert` cells are none that a
    spreadsheet takes for a formula: names in a trace are anybody's."""
    import pandas as pd

    def cell(value: Any) -> Any:
        is_formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
        return f"'{value}" if inert and is_formula else value

    # Numbers of records stay as they are: 2 is not 2.0 where another row has 2.5.
    if isinstance(rows, pd.DataFrame):
        frame = rows.reset_index(drop=True)
    else:
        frame = pd.DataFrame(list(rows), dtype=object)
    texts = frame.select_dtypes(exclude=["number", "bool"])
    cells = {key: pd.Series(map(cell, texts[key]), dtype=object) for key in texts}
    return str(frame.assign(**cells).to_csv(index=False))


def _markdown(rows: Rows) -> bytes:
    def cell(text: str) -> str:
        return re.sub(r"([|<`*])", r"\\\1", " ".join(text.split()).replace("\\", "\\\\"))

    read = csv.reader(io.StringIO(csv_text(rows, inert=False)))
    lines = [[cell(each) for each in row] for row in read if row]
    lines[1:1] = [["---"] * len(row) for row in lines[:1]]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines).encode()


def _written(rows: Rows, writer: str, *, inert: bool, **options: Any) -> bytes:
    """By a writer of frames, such as `to_parquet`: that of the CSV, each column of one type."""
    import pandas as pd

    text, content = _CONTROL.sub("?", csv_text(rows, inert=inert)), io.BytesIO()
    frame = pd.DataFrame()
    if text.strip():  # of texts, only an empty cell is missing
        frame = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
    getattr(frame, writer)(content, index=False, **options)
    return content.getvalue()


_FORMS: Mapping[Format, Callable[[Rows], bytes]] = {
    Format.CSV: lambda rows: csv_text(rows).encode(),
    Format.MARKDOWN: _markdown,
    Format.PARQUET: partial(_written, writer="to_parquet", inert=False),
    Format.WORKBOOK: partial(_written, writer="to_excel", inert=True, engine="openpyxl"),
}


def _json(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, allow_nan=False)  # NaN and infinities are errors, never written


def _brief(answer: Mapping[str, Any], form: Format) -> str:
    from perfmodel.reporting.brief import annotation, brief

    line, words = LINE.get(), list[str]()
    rest = iter(line.words)
    for word in rest:
        if word in ("--format", "--output", "-f", "-o"):
            next(rest, None)
        elif not _HOW.fullmatch(word):
            words.append(word)
    found = brief(answer, line.given, shlex.join(words))
    return annotation(found) if form is Format.GITHUB else _json(found)


_OF_ANSWER: Mapping[Format, Callable[[Mapping[str, Any]], str]] = {
    Format.JSON: _json,
    Format.BRIEF: partial(_brief, form=Format.BRIEF),
    Format.GITHUB: partial(_brief, form=Format.GITHUB),
}


@contextmanager
def working(what: str) -> Iterator[Begin]:
    """A sign of life on standard error while work is done; nothing where it is no terminal.

    Gives what long work calls: it shows what is being done by now, how much of all is done, and
    how long the rest will take.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console as Screen
    from rich.progress import Progress, TaskProgressColumn

    share = TaskProgressColumn("{task.percentage:.0f} % done,", text_format_no_percentage="")
    text, _, _, left = Progress.get_default_columns()
    screen = Screen(stderr=True)
    with Progress(text, share, left, console=screen, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def begin(part: str, done: int, total: int) -> None:
            if (total or None) != bar.tasks[task].total:  # another stage, with a pace of its own
                bar.reset(task, total=total or None, completed=done)
            bar.update(task, completed=done, description=f"{what}: {part}", refresh=True)

        yield begin


def tell(*blocks: Block) -> None:
    """Print what there is to say of a file that was written."""
    shown = page()
    shown.show(*blocks)
    sys.stdout.write(shown.text)


def wrote(path: Path, what: str, text: str | None = None) -> None:
    """Say on standard error what was written where, and what to do with it; write `text` there
    first, where it is given."""
    if text is not None:
        write_text(path, text)
    if is_stdout(path):
        return
    print(one_line(f"perfmodel: wrote {path}: {what}"), file=sys.stderr)


def refuse_cautions(source: str, cautions: Sequence[str]) -> None:
    """Raise `TraceError` with the first of them: what `--strict` asks for."""
    for line in cautions:
        raise TraceError(f"{source}: {line} (--strict)")


def save_figure(path: Path | None, draw: Callable[[], Figure]) -> None:
    """Draw and write a figure where an option asks for it, and say so."""
    if path is not None:
        from perfmodel.plot import save

        save(draw(), path)
        wrote(path, "the figure")


def check_target(*paths: Path | None) -> None:
    """Raise `PerfmodelError` where a file cannot be written, or is what another word of the command
    line names: an input, or another output."""
    for path in paths:
        if path is None or is_stdout(path):
            continue
        check_writable(path, None)
        place, named = os.path.realpath(path), 0
        for word in LINE.get().words:  # a file alone, -oFILE, --option=FILE, or FILE.py:CLASS
            forms = (word, word.removeprefix("-o"), word.partition("=")[2], word.rpartition(":")[0])
            named += place in [os.path.realpath(each) for each in forms if each]
        if named > 1:
            raise UsageError(f"{path}: is the input, or two outputs; write elsewhere")


def check_figure(path: Path | None) -> None:
    """Raise `PerfmodelError` where no figure can be written; said before any is drawn."""
    if path is None:
        return
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of a home that it cannot write to
    library("matplotlib")
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        known = ", ".join(FIGURE_SUFFIXES)
        raise UsageError(f"--figure {path}: a figure is one of {known}, by its suffix")
    check_target(path)
