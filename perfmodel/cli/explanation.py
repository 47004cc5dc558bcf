"""`perfmodel predict --explain NODE`: why one node takes what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.cli.output import Output, rows_csv

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.prediction import Prediction

SCHEMA = "perfmodel.explanation/1"
_COLUMNS = ("hardware", "node", "part", "term", "value")


def write_explanation(found: Prediction, node: str, target: Output) -> None:
    """Write why `node` takes what it takes, on each hardware of `found`.

    Raises `UsageError` where there is no such node.
    """
    answers = [result.explain(node).to_dict() for result in found.results]

    def table(console: Console) -> None:
        from perfmodel.cli.explanation_tables import show_explained

        for answer in answers:
            show_explained(console, answer)

    target.write(
        answer=lambda: {"schema": SCHEMA, "results": answers, "warnings": found.warnings},
        csv=lambda: rows_csv([row for each in answers for row in _rows(each)], _COLUMNS),
        table=table,
        warnings=found.warnings,
    )


def _rows(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One per term of each reason, parts named `REASON / PART`."""
    about = {"hardware": answer["hardware"], "node": answer["node"]["number"]}
    for part, reason in reasons(answer["reason"]):
        terms = {"duration_us": reason["duration_us"], "formula": reason["formula"]}
        for term, value in (terms | reason["terms"]).items():
            yield about | {"part": part, "term": term, "value": value}


def reasons(reason: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, reason) of a reason and of its parts, outermost first."""
    name = f"{before}{reason['what']}"
    yield name, reason
    for part in reason["parts"]:
        yield from reasons(part, f"{name} / ")
