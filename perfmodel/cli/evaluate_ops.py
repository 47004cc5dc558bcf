"""`perfmodel evaluate ops`: device time per op against what its shapes say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    OutputOption,
    max_bytes,
)
from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def ops(
    traces: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[FOLDER|TRACE...]",
            help="Traces that record shapes: single files, or folders with what lies below them.",
        ),
    ] = None,
    lookups: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            metavar="FILE.csv",
            help="Published times of embedding kernels; may be given several times.",
        ),
    ] = None,
    by_op: Annotated[
        bool, typer.Option("--by-op", help="By operator instead of by kernel family.")
    ] = False,
    only: Annotated[
        str, typer.Option(metavar="PATTERN", help="Operators whose name matches, as in '*ookup*'.")
    ] = "*",
    alone: Annotated[
        bool, typer.Option("--alone", help="Only ops beside which no other stream ran anything.")
    ] = False,
    format: FormatOption = None,
    output: OutputOption = None,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How far each op's device time is from what its shapes alone predict, on its own device.

    \b
    Examples:
      perfmodel evaluate ops my-trace.json.gz
      perfmodel evaluate ops my-trace.json.gz --alone
      perfmodel evaluate ops my-trace.json.gz --by-op --only '*ookup*'
      perfmodel evaluate ops --lookups embedding_kernels.csv --format json
    """
    target = Output(format, output, sources=[*(traces or []), *(lookups or [])])
    if not traces and not lookups:
        raise UsageError("say what is evaluated: a trace or a folder, or --lookups FILE")

    from perfmodel.validate.trace_ops import Choice, evaluate_ops

    choice, limit = Choice(only=only, by_op=by_op, alone=alone), max_bytes(max_memory)
    with working("evaluating"):
        found = evaluate_ops(traces or [], lookups or [], choice=choice, max_bytes=limit)

    def table(console: Console) -> None:
        from perfmodel.cli.tables import add, new_table, show

        titles = ("n", "GMAE", "MAPE", "median", "bias", "total")
        lines = new_table(
            "Device time per op from shapes alone, errors in percent",
            *("of", "device", "name", *titles),
            texts=3,
        )
        for row in (*found.rows, *((found.all_rows,) if found.all_rows else ())):
            sizes = (row.gmae_pct, row.mape_pct, row.median_pct)
            signed = (f"{value:+.1f}" for value in (row.bias_pct, row.total_pct))
            figures = (f"{row.n:,}", *(f"{value:.1f}" for value in sizes), *signed)
            add(lines, row.source, row.device, row.name, *figures)
        show(console, lines)

    target.write_result(found, table, found.warnings)
