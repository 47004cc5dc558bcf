"""`perfmodel evaluate designs`: figures that papers published, predicted."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfmodel.cli.options import FormatOption, OutputOption, option
from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import Table, columns

if TYPE_CHECKING:
    from perfmodel.cli.console import Console


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


_DESIGNS = columns("id=figure:name;predicted:s;published:s;error=error %:s;holds;evidence")


def _show_designs(console: Console, evaluation: Any) -> None:
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
