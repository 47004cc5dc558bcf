"""`perfmodel evaluate published`: published DLRM throughput against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from perfmodel.cli.options import FormatOption, OutputOption
from perfmodel.cli.output import Output, check_figure, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate.published_errors import PublishedErrors


def published(
    mlperf: Annotated[
        Path, typer.Option(metavar="FILE", help="Table of MLPerf Training submissions of DLRM.")
    ],
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw rates over devices (.png, .svg, .pdf)."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Predict published DLRM throughput from configurations alone, and compare.

    MLPerf: a row per distinct configuration of GPUs that are joined by links, the same run of
    several rounds once; one-hot DLRM with its evaluations, DLRM-DCNv2 without.

    \b
    Examples:
      perfmodel evaluate published --mlperf mlperf_dlrm.csv
      perfmodel evaluate published --mlperf mlperf_dlrm.csv --format csv
    """
    target = Output(format, output, sources=[mlperf])
    check_figure(figure, None)

    from perfmodel.validate.published import read_mlperf
    from perfmodel.validate.published_errors import evaluate_published

    listed, left_out = read_mlperf(mlperf)
    with working("predicting") as say:

        def begin(name: str, position: int) -> None:
            say(f"predicting {name} ({position + 1} of {len(listed)})")

        found = evaluate_published(listed, left_out, begin=begin)
    if figure:
        from perfmodel.plot import save

        save(found.plot(), figure)

    target.write_result(found, lambda console: _show(console, found))


def _show(console: Console, found: PublishedErrors) -> None:
    from perfmodel.cli.tables import NOTHING, add, new_table, say, show

    def percent(value: float | None) -> str:
        return NOTHING if value is None else f"{value:.1f} %"

    titles = ("runs", "measured M/s", "predicted M/s", "error %")
    table = new_table("Samples per second", "of", "configuration", *titles, texts=2)
    for row in found.rows:
        rates = (row.measured / 1e6, row.samples_per_s / 1e6)
        add(
            table,
            row.published.group,
            row.published.name,
            str(len(row.published.rates)),
            *(f"{rate:.3g}" for rate in rates),
            f"{row.error_pct:+.1f}",
        )
    show(console, table)
    for group in found.summary():
        order = group["rank_correlation"]
        say(
            console,
            f"{group['group']}: n {group['n']}, median {percent(group['median_pct'])}, "
            f"held out {percent(group['held_out']['median_pct'])}, "
            f"90th percentile {percent(group['p90_pct'])}, worst {percent(group['worst_pct'])}, "
            f"bias {group['bias_pct']:+.1f} %, "
            f"one node {percent(group['one_node']['median_pct'])}, "
            f"several {percent(group['several_nodes']['median_pct'])}, rank correlation "
            f"{NOTHING if order is None else f'{order:.3f}'}; {_by_generation(group)}",
        )
    say(console, found.to_dict()["about"])
    left = new_table("Left out", "row", "reason", texts=2)
    for each in found.left_out:
        add(left, each.name, each.reason)
    show(console, left)


def _by_generation(summary: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {errors['median_pct']:.1f} %" for name, errors in summary["generations"].items()
    )
