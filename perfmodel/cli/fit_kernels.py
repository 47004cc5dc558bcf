"""`perfmodel fit kernels`: kernel models from measurement tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from perfmodel.cli.options import MeasuredKernelsOption
from perfmodel.cli.output import working
from perfmodel.errors import PerfmodelError


def kernels(
    data: MeasuredKernelsOption,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="The new directory of models."),
    ],
    test: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            metavar="FILE", help="Measured kernels to test on, not to fit; several times, too."
        ),
    ] = None,
    estimator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="MODULE:CLASS",
            help="Any scikit-learn regressor in place of boosted trees, or a function that makes "
            "one. Whoever loads the models then runs its code (--trust-models).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same models.")] = 0,
    rows: Annotated[
        int, typer.Option(min=200, help="The most rows used per device, op and dtype.")
    ] = 8000,
) -> None:
    """Fit every kernel family that the tables hold; print the errors on each device left out.

    Beside them stand those of the roofline and of plain trees, fitted to the same rows.

    \b
    Examples:
      perfmodel fit kernels --data train.parquet --data mine.csv -o my-models
      perfmodel fit kernels --data train.parquet --test other.parquet -o my-models
      perfmodel fit kernels --data train.parquet --estimator my_models:MyRegressor -o my-models
      perfmodel evaluate kernels --data test.parquet --models my-models
    """
    if output.exists():
        raise PerfmodelError(f"{output}: exists already; name a new directory")
    if not output.parent.is_dir():
        raise PerfmodelError(f"{output}: cannot be written: there is no folder {output.parent}")

    from perfmodel.cli.kernel_error_tables import show_compared
    from perfmodel.cli.tables import console_of
    from perfmodel.fit.kernel_report import holdout_errors, left_out_errors
    from perfmodel.fit.kernels import fit_kernels
    from perfmodel.kernels.learned.store import save

    with working("fitting") as say:
        fitted = fit_kernels(data, seed=seed, rows_per_group=rows, estimator=estimator, begin=say)
        say("errors on devices left out")
        errors = left_out_errors(fitted, seed=seed)
        tested = holdout_errors(fitted, test, seed=seed) if test else []
    save(output, fitted.models, fitted.about)
    console, text = console_of(to_terminal=False)
    show_compared(console, errors, "Each device left out in turn, errors in percent")
    if tested:
        show_compared(console, tested, "On the tables to test on, errors in percent")
    if text is not None:
        typer.echo(text.getvalue().rstrip())
    sizes = ", ".join(f"{name} {part['rows']:,}" for name, part in fitted.about["parts"].items())
    typer.echo(f"{output}: fitted on rows: {sizes}")
