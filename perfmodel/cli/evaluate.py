"""`perfmodel evaluate`: predicted against measured; traces, kernels, operators, modules, more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli import evaluate_steps
from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    MeasuredKernelsOption,
    ModelsOption,
    OutputOption,
    SetOption,
    StrictOption,
    TrustModelsOption,
    kernel_models,
    max_bytes,
    no_configuration,
    verb_of,
)
from perfmodel.cli.output import Output, check_figure, save_figure, working
from perfmodel.cli.tables import filled, fitted, say, shown
from perfmodel.errors import UsageError
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.evaluation.collectives import CollectiveEvaluation
    from perfmodel.evaluation.modules import ModuleErrors
    from perfmodel.evaluation.ops import OpEvaluation
    from perfmodel.evaluation.results import Evaluation


def traces(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER|TRACE...]",
            help="Files, or folders, which are searched recursively: each folder of ranks is one "
            "job, and a device's file (.toml) goes with the measurement tables in its folder. "
            "[default: the folder `traces` here, and the bundled demo]",
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How far predictions are from what was measured, per step, host overhead and kernel family.

    A replay has seen the step's own durations; all other errors are of what was left out, or of
    predictions from shapes alone.

    \b
    Examples:
      perfmodel evaluate traces                         the project's traces and the demo
      perfmodel evaluate traces my-traces/ one.json.gz
      perfmodel evaluate traces --format json -o errors.json
    """
    target = Output(format, output)
    evaluation = evaluate_paths(paths or [], strict=strict, limit_bytes=max_bytes(max_memory))

    from perfmodel.cli.error_tables import show_evaluation

    target.write_result(evaluation, show_evaluation, evaluation.warnings)


def evaluate_paths(
    paths: list[str], *, strict: bool, limit_bytes: int, steps_by: str = ""
) -> Evaluation:
    """The errors over `paths`; without any, over the folder `traces` here and the demo."""
    from perfmodel import api

    with working("evaluating") as begin:
        return api.evaluate(
            *paths, strict=strict, max_bytes=limit_bytes, steps_by=steps_by, begin=begin
        )


def kernels(
    data: MeasuredKernelsOption,
    models: ModelsOption = None,
    trust_models: TrustModelsOption = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw every row with its interval (.png, .svg, .pdf)."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Errors of kernel models on tables of measured kernels, per op, device and dtype.

    Every row counts whose launch came in time. What a table was fitted on is no test: leave devices
    out, or whole tables.

    \b
    Examples:
      perfmodel evaluate kernels --data test.parquet
      perfmodel evaluate kernels --data test.parquet --models my-models --format json
    """
    target = Output(format, output)
    check_figure(figure)

    from perfmodel.cli.error_tables import show_kernel_errors
    from perfmodel.evaluation.kernels import evaluate_kernels

    with working("evaluating"), kernel_models(models, trusted=trust_models):
        evaluation = evaluate_kernels(data)

    save_figure(figure, evaluation.plot)
    target.write_result(evaluation, show_kernel_errors, evaluation.warnings)


def collectives(
    curves: Annotated[
        Path,
        typer.Option(metavar="CURVES.csv", help="What each curve is: collective, GPUs, wires."),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="POINTS.csv[.gz]", help="Its points: curve_id, size_bytes, time_us."),
    ],
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES,...",
            help="Sizes whose measured points correct their own curve; they are not scored.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A model of `fit collectives`, for the shipped one."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """How far predicted collectives are from measured ones, per curve, at 64 kB and more.

    \b
    Examples:
      perfmodel evaluate collectives --curves curves.csv --data points.csv.gz
      perfmodel evaluate collectives --curves curves.csv --data points.csv.gz \\
        --calibrate 262144,2097152,16777216,268435456
    """
    target = Output(format, output)
    sizes = _sizes(calibrate)

    from perfmodel.cost.collectives.store import load
    from perfmodel.evaluation.collectives import evaluate_collectives

    with working("evaluating"):
        evaluation = evaluate_collectives(
            str(curves), str(data), sizes, load(model) if model is not None else None
        )

    target.write_result(evaluation, _show_collectives, evaluation.warnings)


def _show_collectives(console: Console, evaluation: CollectiveEvaluation) -> None:
    rows = []
    for row in evaluation.summary():
        figures = (f"{row['median_pct']:.1f}", f"{100 * row['within_frac']:.0f}")
        rows.append((row["collective"], row["where"], str(row["curves"]), *figures))
    title = "Median over curves of the median error, 64 kB and more"
    heads = ("collective", "where", "curves", "median %", "inside 90 %")
    console.show(filled(title, heads, rows, texts=2))


def _sizes(text: str | None) -> list[float]:
    try:
        sizes = [float(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        sizes = [-1.0]
    if any(not 0 < size < float("inf") for size in sizes):
        raise UsageError(f"--calibrate {text}: expected sizes in bytes, as in 262144,2097152")
    return sizes


def ops(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER|TRACE...]",
            callback=no_configuration,
            help="Traces that record shapes: files, or folders, which are searched recursively.",
        ),
    ] = None,
    lookups: Annotated[
        list[Path] | None,
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
        bool, typer.Option("--alone", help="Only ops during which no other stream was busy.")
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
    target = Output(format, output)
    if not traces and not lookups:
        raise UsageError("nothing to evaluate: give a trace, a folder or --lookups FILE")

    from perfmodel.evaluation.ops import OpSelection, evaluate_ops

    choice, limit = OpSelection(only=only, by_op=by_op, alone=alone), max_bytes(max_memory)
    with working("evaluating") as begin:
        evaluation = evaluate_ops(
            traces or [], lookups or [], choice=choice, max_bytes=limit, begin=begin
        )

    target.write_result(evaluation, _show_ops, evaluation.warnings)


def _show_ops(console: Console, evaluation: OpEvaluation) -> None:
    rows = []
    for row in (*evaluation.rows, *((evaluation.all_rows,) if evaluation.all_rows else ())):
        sizes = (f"{value:.1f}" for value in (row.gmae_pct, row.mape_pct, row.median_pct))
        signed = (f"{value:+.1f}" for value in (row.bias_pct, row.total_pct))
        rows.append((row.source, row.device, row.name, f"{row.n:,}", *sizes, *signed))
    heads = ("of", "device", "name", "n", "GMAE", "MAPE", "median", "bias", "total")
    title = "Device time per op from shapes alone, errors in percent"
    console.show(filled(title, heads, rows, texts=3))


def modules(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE.csv", help="Calls as `collect modules` measured them.")
    ],
    programs: Annotated[
        Path, typer.Option(metavar="DIR", help="The files that were measured; they are executed.")
    ],
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What to predict for, if not the table's device."),
    ] = None,
    settings: SetOption = None,
    overheads: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The host, as a profile of overheads.")
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Predict calls of PyTorch modules from their source, and compare: call, host and device.

    Calls that the host bounds say which `host.single_thread_ratio` fits this machine: with `--set`,
    predictions of other modules then have its speed.

    \b
    Examples:
      perfmodel evaluate modules collected/modules.csv --programs models/
      perfmodel evaluate modules modules.csv --programs models/ --set host.single_thread_ratio=0.7
      perfmodel evaluate modules modules.csv --programs models/ --format csv -o errors.csv
    """
    target = Output(format, output)

    from perfmodel.evaluation.modules import evaluate_modules, read_calls

    calls = read_calls(table)
    with working("predicting") as begin:
        evaluation = evaluate_modules(
            calls,
            programs,
            hardware=hardware,
            settings=settings or (),
            overheads=overheads,
            begin=begin,
        )
    target.write_result(evaluation, _show_modules, evaluation.left_out)


def _show_modules(console: Console, evaluation: ModuleErrors) -> None:
    rows = [
        (
            row.program,
            f"{row.mode}{', training' if row.is_training else ''}",
            *(human_us(row.predicted_us), human_us(row.measured_us)),
            *(shown(pct, "+.1f", "") for pct in (row.error_pct, row.host_error_pct)),
            shown(row.device_error_pct, "+.1f", ""),
        )
        for row in evaluation.rows
    ]
    titles = ("module", "mode", "predicted", "measured", "error %", "host %", "device %")
    console.show(fitted("Calls of modules", titles, rows))
    for each in evaluation.summary():
        device = each["device_median_pct"]
        say(
            console,
            f"{each['mode']}{', training' if each['is_training'] else ''}: n {each['n']}, "
            f"median {each['median_pct']:.1f} %, bias {each['bias_pct']:+.1f} %, "
            f"intervals hold {each['coverage_frac']:.0%}; host {each['host_median_pct']:.1f} % "
            f"(bias {each['host_bias_pct']:+.1f} %)"
            f"{'' if device is None else f', device {device:.1f} %'}",
        )

    speed, taken = evaluation.measured_host_speed_ratio, evaluation.host_speed_ratio
    if speed is not None:
        say(
            console,
            f"the host, by {len(evaluation.host_bound)} calls that it bounds: "
            f"--set host.single_thread_ratio={speed:.2g} (taken: {taken:.2g})",
        )


HELP = """How far predictions are from what was measured.

\b
Examples:
  perfmodel evaluate traces                   the project's traces and the demo
  perfmodel evaluate traces my-traces/ one.json.gz
  perfmodel evaluate kernels --data test.parquet
  perfmodel evaluate ops my-trace.json.gz
  perfmodel evaluate modules collected/modules.csv --programs models/
  perfmodel evaluate pairs one_h100.json.gz one_mi300x.json.gz
  perfmodel evaluate steps --truth truth.csv --hardware my-machine.toml
  perfmodel evaluate collectives --curves curves.csv --data points.csv.gz
  perfmodel evaluate published --mlperf mlperf_dlrm.csv
  perfmodel evaluate designs                  what papers published about co-designs
  perfmodel evaluate NOUN --help              more, with examples
"""
evaluate = verb_of(
    HELP,
    collectives,
    traces,
    kernels,
    ops,
    modules,
    evaluate_steps.pairs,
    evaluate_steps.steps,
    evaluate_steps.published,
    evaluate_steps.designs,
)
