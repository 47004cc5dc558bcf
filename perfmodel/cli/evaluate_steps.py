"""`perfmodel evaluate` steps, pairs and designs: whole steps, also of papers."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    OutputOption,
    SetOption,
    max_bytes,
)
from perfmodel.cli.output import Output, working
from perfmodel.cli.tables import filled, fitted, say, shown
from perfmodel.errors import UsageError
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.evaluation.pairs import PairErrors
    from perfmodel.evaluation.step_times import StepErrors


def steps(
    truth: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Table of configurations and step times (`collect truth`). Repeatable.",
        ),
    ],
    hardware: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help="The CPU, best as `fit device` calibrated it, or the GPU."
        ),
    ],
    settings: SetOption = None,
    overheads: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="A GPU's host, as a profile of overheads."),
    ] = None,
    blind: Annotated[
        bool, typer.Option(help="Predict only: leave out what was measured, and the errors.")
    ] = False,
    before: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Steps that the CPU was calibrated on …")
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="… and the same configurations measured again when the truth was: how far the "
            "machine moved, where the tables hold no reference work.",
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Predict un-profiled DLRM steps from their shapes, and compare.

    On a CPU, where the collector's reference work stands beside them, also in units of it: as if
    the machine had been as fast as when it was calibrated.

    \b
    Examples:
      perfmodel evaluate steps --truth traces/cpu_dlrm_truth/one_rank.csv --hardware mine.toml
      perfmodel evaluate steps --truth truth.csv --hardware mine.toml --blind -o predicted.json
      perfmodel evaluate steps --truth ops_steps.csv --hardware h200-sxm --overheads mine.json
      perfmodel evaluate steps --truth truth.csv --hardware mine.toml --before ops_steps.csv \\
        --again ops_again_steps.csv
    """
    repeats = [path for path in (before, again) if path is not None]
    target = Output(format, output)
    if len(repeats) == 1:
        raise UsageError("--before and --again: give both, or none")

    from perfmodel.calibrate.drift import drift_of_repeats
    from perfmodel.calibrate.tables import read_steps
    from perfmodel.evaluation.step_times import evaluate_steps
    from perfmodel.hardware import node, with_settings

    machine = with_settings(node(hardware), settings or ())
    on = machine.device if machine.device.target == "cpu" else None
    if on is None and before is not None:
        raise UsageError(f"--before, --again: tell of a CPU how far it moved; {hardware} is none")
    if on is not None and overheads is not None:
        raise UsageError(f"--overheads: is of a GPU's host; {hardware} is a CPU")
    listed = [step for path in truth for step in read_steps(path)]
    with working("predicting") as begin:
        drifts = None
        if on is not None and before is not None and again is not None:
            drifts = drift_of_repeats(read_steps(before), read_steps(again), listed, on)
        evaluation = evaluate_steps(
            listed, on or machine, drifts=drifts, overheads=overheads, blind=blind, begin=begin
        )

    target.write_result(evaluation, _show_steps, evaluation.warnings)


def _show_steps(console: Console, evaluation: StepErrors) -> None:
    is_referenced = any(row.referenced is not None for row in evaluation.rows)
    titles = ("ranks", "predicted", "90 % interval", "measured", "error %", "spread %")
    referenced = ("predicted", "measured", "raw %", "moved", "90 % interval", "error %")
    rows = []
    for row in evaluation.rows:
        measured = "" if row.measured_us is None else human_us(row.measured_us)
        predicted, error = human_us(row.predicted_us), shown(row.error_pct, "+.1f", "")
        if is_referenced:
            moved_step = row.referenced
            interval = _interval(moved_step.low_us, moved_step.high_us) if moved_step else ""
            error_pct = moved_step.error_pct if moved_step else None
            by_reference = interval, shown(error_pct, "+.1f", "")
            moved = shown(row.drift_ratio, ".2f", "")
            rows.append((row.name, predicted, measured, error, moved, *by_reference))
        else:
            interval, spread = _interval(row.low_us, row.high_us), shown(row.spread_pct, ".1f", "")
            rows.append((row.name, str(row.ranks), predicted, interval, measured, error, spread))
    columns = ("configuration", *(referenced if is_referenced else titles))
    console.show(filled(f"Steps on {evaluation.device}", columns, rows))
    raw = "raw: " if is_referenced else ""
    for what, figures in ((raw, evaluation.summary()), ("by reference: ", evaluation.referenced())):
        if figures["n"]:
            say(
                console,
                f"{what}n {figures['n']}, median {figures['median_pct']:.1f} %, "
                f"90th percentile {figures['p90_pct']:.1f} %, worst {figures['worst_pct']:.1f} %, "
                f"bias {figures['bias_pct']:+.1f} %, intervals hold {figures['coverage_frac']:.0%}",
            )


def _interval(low_us: float | None, high_us: float | None) -> str:
    if low_us is None or high_us is None:
        return ""
    return f"{human_us(low_us)} to {human_us(high_us)}"


def pairs(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="ONE OTHER...", help="Pairs of traces: one program on two GPUs."),
    ],
    format: FormatOption = None,
    output: OutputOption = None,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How far a trace moved to another GPU is from the trace of the same program there.

    Beside each error stand those of two predictions that need no model: the same time as on the
    source, and roofline ratios of the kernels' classes.

    \b
    Examples:
      perfmodel evaluate pairs bert_h100.json.gz bert_mi300x.json.gz
      perfmodel evaluate pairs a_h100.json a_a100.json b_h100.json b_a100.json --format json
    """
    target = Output(format, output)

    from perfmodel.evaluation.pairs import evaluate_pairs

    limit = max_bytes(max_memory)
    with working("evaluating") as begin:
        evaluation = evaluate_pairs(traces, max_bytes=limit, begin=begin)
    target.write_result(evaluation, _show_pairs)


def _show_pairs(console: Console, evaluation: PairErrors) -> None:
    heads = ("of", "predicted", "measured", "error %", "same %", "roofline %")
    for each in evaluation.directions:
        rows = []
        for moved in (*each.times, *each.families):
            predicted = (moved.predicted_us, moved.source_us, moved.roofline_us)
            errors = (shown(moved.error_pct(us), "+.1f") for us in predicted)
            times = human_us(moved.predicted_us), human_us(moved.measured_us)
            rows.append((moved.name, *times, *errors))
        title = f"{Path(each.trace).name}: {each.source} to {each.target}"
        console.show(filled(title, heads, rows))
        is_within = "within" if each.within else "outside"
        interval = f"{human_us(each.low_us)} to {human_us(each.high_us)}"
        say(console, f"the measured step is {is_within} its interval, {interval}")
    summary = evaluation.summary()
    say(
        console,
        f"n {summary['n']}; mean error of the step {summary['step_pct']:.1f} %, the same step as "
        f"the source {summary['step_same_pct']:.1f} %; GPU active "
        f"{summary['gpu_active_pct']:.1f} %, the same {summary['gpu_active_same_pct']:.1f} %; "
        f"intervals hold {summary['coverage_frac']:.0%}",
    )


def designs(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Figures that the name begins (hotline), or those of a file (neo). Repeatable.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="TOML files of published figures, for the checkout's traces/published. Python "
            "files that they name are run, as by `python FILE`.",
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Recompute the figures that papers published about co-designs, each beside its tolerance.

    What cannot be read as a number is a band. `evidence` says what a row shows: exact (an
    identity), blind (predicted before the figure was read), seen, or input (the figure, or one that
    it follows from, is an input). `assumed` lists what no source says.

    \b
    Examples:
      perfmodel evaluate designs
      perfmodel evaluate designs --only cachedembedding --format json
    """
    target = Output(format, output)

    runner = _published_runner()
    with working("predicting") as begin:
        evaluation = runner.evaluate_designs(only=only or (), folder=folder, begin=begin)
    target.write_result(evaluation, _show_designs)


def _published_runner() -> Any:
    """`benchmarks/published/designs.py` of the checkout here, or of that of the package."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "benchmarks" / "published").is_dir():
            sys.path.append(str(root))
            return import_module("benchmarks.published.designs")
    raise UsageError("evaluate designs needs a checkout: there is no folder benchmarks/published")


def _show_designs(console: Console, evaluation: Any) -> None:
    rows = []
    for figure in evaluation.figures:
        row, target = figure.row, figure.row.target
        ends = target if isinstance(target, tuple) else (target,)
        tolerance = f" (±{row.tolerance_pct:g})" if row.tolerance_pct else ""
        published = f"{' to '.join(map(_four_digits, ends))} {row.unit}"
        error, holds = f"{figure.error_pct:+.1f}{tolerance}", "yes" if figure.holds else "no"
        predicted = _four_digits(figure.predicted)
        rows.append((row.id, predicted, published, error, holds, row.evidence))
    titles = ("figure", "predicted", "published", "error %", "holds", "evidence")
    console.show(fitted("Published designs", titles, rows, whole=True))
    counts = evaluation.holding().items()
    say(console, "hold: " + ", ".join(f"{n} of {of} {kind}" for kind, (n, of) in counts))


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
