"""`perfmodel evaluate pairs`: one program on two machines, each trace moved to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    OutputOption,
    max_bytes,
)
from perfmodel.cli.output import Output, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate.pairs import PairErrors


def pairs(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="ONE OTHER...", help="Traces by twos: one program on two GPUs."),
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
    target = Output(format, output, sources=traces)

    from perfmodel.validate.pairs import evaluate_pairs

    limit = max_bytes(max_memory)
    with working("evaluating") as say:
        found = evaluate_pairs(
            traces, max_bytes=limit, begin=lambda name: say(f"evaluating {name}")
        )
    target.write_result(found, lambda console: _show(console, found))


def _show(console: Console, found: PairErrors) -> None:
    from pathlib import Path

    from perfmodel.cli.tables import add, new_table, say, show
    from perfmodel.units import human_us

    def signed(error_pct: float | None) -> str:
        return "-" if error_pct is None else f"{error_pct:+.1f}"

    for each in found.directions:
        table = new_table(
            f"{Path(each.trace).name}: {each.source} to {each.target}",
            *("of", "predicted", "measured", "error %", "same %", "roofline %"),
        )
        for moved in (*each.times, *each.families):
            errors = (moved.predicted_us, moved.source_us, moved.roofline_us)
            add(
                table,
                moved.name,
                human_us(moved.predicted_us),
                human_us(moved.measured_us),
                *(signed(moved.error_pct(us)) for us in errors),
            )
        show(console, table)
        is_within = "within" if each.within else "outside"
        interval = f"{human_us(each.low_us)} to {human_us(each.high_us)}"
        say(console, f"the measured step is {is_within} its interval, {interval}")
    summary = found.summary()
    say(
        console,
        f"n {summary['n']}; mean error of the step {summary['step_pct']:.1f} %, the same step as "
        f"the source {summary['step_same_pct']:.1f} %; GPU active "
        f"{summary['gpu_active_pct']:.1f} %, the same {summary['gpu_active_same_pct']:.1f} %; "
        f"intervals hold {summary['coverage_frac']:.0%}",
    )
