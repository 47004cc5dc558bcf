"""`perfmodel evaluate` published and designs: figures that others published, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfmodel.cli.options import FormatOption, OutputOption, option
from perfmodel.cli.output import Output, check_figure, save_figure, working
from perfmodel.reporting.tables import Table, columns, shown

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.evaluation.published_designs import DesignFigures
    from perfmodel.evaluation.published_throughput import PublishedErrors


def published(
    mlperf: Annotated[
        list[Path], option("Table of MLPerf Training submissions of DLRM. May be repeated.", "FILE")
    ],
    figure: Annotated[
        Path | None, option("Draw rates over devices (.png, .svg, .pdf).", "FILE")
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
    target = Output(format, output)
    check_figure(figure)

    from perfmodel.evaluation.published_throughput import evaluate_published, read_mlperf

    listed, left_out = read_mlperf(*mlperf)
    with working("predicting") as begin:
        evaluation = evaluate_published(listed, left_out, begin=begin)
    save_figure(figure, evaluation.plot)
    target.write_result(evaluation, _show_published)


_PUBLISHED = columns(
    "group=of;name=configuration;runs:d;measured:.3g;predicted:.3g;interval=90 % interval:s;"
    "error_pct=error %:+.1f;scaled_error_pct=scaled %:+.1f"
)


def _show_published(console: Console, evaluation: PublishedErrors) -> None:
    def percent(value: float | None) -> str:
        return f"{shown(value, '.1f')} %"

    answer = evaluation.to_dict()
    records = [
        row
        | {
            "runs": len(row["sources"]),
            "measured": row["samples_per_s_measured"] / 1e6,
            "predicted": row["samples_per_s_predicted"] / 1e6,
            "interval": f"{row['samples_per_s_low'] / 1e6:.3g} to "
            f"{row['samples_per_s_high'] / 1e6:.3g}",
        }
        for row in answer["rows"]
    ]
    console.show(Table("Million samples per second", _PUBLISHED, records))
    for group in answer["summary"]:
        generations = ", ".join(
            f"{name} {percent(errors['median_pct'])}"
            for name, errors in group["generations"].items()
        )
        console.say(
            f"{group['group']}: n {group['n']}, median {percent(group['median_pct'])}, "
            f"held out {percent(group['held_out']['median_pct'])}, "
            f"90th percentile {percent(group['p90_pct'])}, worst {percent(group['worst_pct'])}, "
            f"bias {group['bias_pct']:+.1f} %, "
            f"one node {percent(group['one_node']['median_pct'])}, "
            f"several {percent(group['several_nodes']['median_pct'])}, rank correlation "
            f"{shown(group['rank_correlation'], '.3f')}; {generations}"
        )
    console.say(answer["about"])
    heads = columns("name=row;reason")
    console.show(Table("Left out", heads, answer["left_out"], full_names=True))


def designs(
    only: Annotated[
        list[str] | None,
        option("Figures whose name begins so (hotline), or of a file (neo). Repeatable.", "NAME"),
    ] = None,
    folder: Annotated[
        Path | None,
        option("TOML files of published figures; Python files that they name are run.", "DIR"),
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

    from perfmodel.evaluation.published_designs import evaluate_designs

    with working("predicting") as begin:
        evaluation = evaluate_designs(only=only or (), folder=folder, begin=begin)
    target.write_result(evaluation, _show_designs)


_DESIGNS = columns("id=figure:name;predicted:s;published:s;error=error %:s;holds;evidence")


def _show_designs(console: Console, evaluation: DesignFigures) -> None:
    records = []
    counts: dict[str, list[bool]] = {}
    for row in evaluation.to_dict()["rows"]:
        target: Any = row["target"]
        bounds = target if isinstance(target, list) else [target]
        tolerance = f" (±{row['tolerance_pct']:g})" if row["tolerance_pct"] else ""
        texts = {
            "predicted": _four_digits(row["predicted"]),
            "published": f"{' to '.join(map(_four_digits, bounds))} {row['unit']}",
            "error": f"{row['error_pct']:+.1f}{tolerance}",
            "holds": "yes" if row["pass"] else "no",
        }
        records.append(row | texts)
        counts.setdefault(row["evidence"], []).append(row["pass"])
    console.show(Table("Published designs", _DESIGNS, records))
    kinds = (f"{sum(each)} of {len(each)} {kind}" for kind, each in counts.items())
    console.say(f"hold: {', '.join(kinds)}")


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
