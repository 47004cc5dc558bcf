"""`perfmodel evaluate kernels`: kernel models against measurement tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    FormatOption,
    MeasuredKernelsOption,
    ModelsOption,
    OutputOption,
    TrustModelsOption,
    kernel_models,
)
from perfmodel.cli.output import Output, check_figure, working

if TYPE_CHECKING:
    from rich.console import Console


def kernels(
    data: MeasuredKernelsOption,
    models: ModelsOption = None,
    trust_models: TrustModelsOption = False,
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw every row with its interval (.png, .svg, .pdf)."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Errors of kernel models on tables of measured kernels, per op, device and dtype.

    Every row counts. What a table was fitted on is no test: leave devices out, or whole tables.

    \b
    Examples:
      perfmodel evaluate kernels --data test.parquet
      perfmodel evaluate kernels --data test.parquet --models my-models --format json
    """
    target = Output(format, output, sources=data)
    check_figure(figure, None)

    from perfmodel.validate.kernels import evaluate_kernels

    with working("evaluating"), kernel_models(models, trusted=trust_models):
        found = evaluate_kernels(data)

    if figure:
        from perfmodel.plot import save

        save(found.plot(), figure)

    def table(console: Console) -> None:
        from perfmodel.cli.kernel_error_tables import show_errors

        show_errors(console, found.rows)

    target.write_result(found, table)
