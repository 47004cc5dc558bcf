"""`perfmodel predict --explain NODE`: why one node takes what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console
from perfmodel.cli.hardware_tables import show_coefficients, show_figures
from perfmodel.cli.output import Output, rows_csv
from perfmodel.cli.tables import counted, filled, say
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction


SCHEMA = "perfmodel.explanation/1"
_COLUMNS = ("hardware", "node", "part", "term", "value")


def write_explanation(explanation: Prediction, node: str, target: Output) -> None:
    """Write why `node` takes what it takes, on each hardware of `found`.

    Raises `UsageError` where there is no such node.
    """
    answers = [result.explain(node).to_dict() for result in explanation.results]

    def table(console: Console) -> None:
        for answer in answers:
            show_explained(console, answer)

    target.write(
        answer=lambda: {"schema": SCHEMA, "results": answers, "warnings": explanation.warnings},
        csv=lambda: rows_csv([row for each in answers for row in _rows(each)], _COLUMNS),
        table=table,
        warnings=explanation.warnings,
    )


def _rows(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One per term of each reason, parts named `REASON / PART`."""
    about = {"hardware": answer["hardware"], "node": answer["node"]["number"]}
    for part, reason in nested_reasons(answer["reason"]):
        terms = {"duration_us": reason["duration_us"], "formula": reason["formula"]}
        for term, value in (terms | reason["terms"]).items():
            yield about | {"part": part, "term": term, "value": value}


def nested_reasons(
    reason: Mapping[str, Any], before: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, reason) of a reason and of its parts, outermost first."""
    name = f"{before}{reason['what']}"
    yield name, reason
    for part in reason["parts"]:
        yield from nested_reasons(part, f"{name} / ")


def show_explained(console: Console, answer: Mapping[str, Any]) -> None:
    """Where the node stands, its reasons from the outside in, and the figures that they read."""
    node, waits = answer["node"], answer["waits_for"]
    if answer["matches"] > 1:
        say(console, f"{counted(answer['matches'], 'node')} match {answer['asked']}; the longest:")
    op = f" of {node['op']}" if node["op"] else ""
    say(console, f"node {node['number']}: {node['label']}{op}; {node['kind']}, {node['cause']}")
    step = f"step {node['step']}" if node["step"] else "outside of the steps"
    where = f"{answer['hardware']}, {answer['mode']}: rank {node['rank']}, {node['resource']}"
    say(console, f"{where}, {step.replace('step step', 'step')}")
    at = f"{human_us(node['duration_us'])}, from {human_us(node['start_us'])} on"
    if node["on_critical_path"]:
        importance = "on the critical path of its step"
    elif node["slack_us"] is None:
        importance = "no step waits for it"
    else:
        importance = f"not on the critical path: {human_us(node['slack_us'])} of slack"
    say(console, f"{at}; {importance}")
    if waits:
        after = (
            f"starts after node {waits['number']} ({waits['label']}) by its {waits['edge']} edge"
        )
        say(console, f"{after}, lag {human_us(waits['lag_us'])}: {waits['lag_source']}")
    figures: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    coefficients: dict[str, Mapping[str, Any]] = {}
    for name, reason in nested_reasons(answer["reason"]):
        _show_reason(console, name, reason)
        figures |= {tuple(each.values()): each for each in reason["figures"]}
        coefficients |= {each["name"]: each for each in reason["coefficients"]}
    show_figures(console, list(figures.values()))
    show_coefficients(console, [coefficients[name] for name in sorted(coefficients)])


def _show_reason(console: Console, name: str, reason: Mapping[str, Any]) -> None:
    console.print()
    say(console, f"{name}: {human_us(reason['duration_us'])}")
    say(console, f"formula: {reason['formula']}")
    terms = {key: value for key, value in reason["terms"].items() if value is not None}
    if not terms:
        return
    rows = [(key, v if isinstance(v, str) else f"{v:,.10g}") for key, v in terms.items()]
    table = filled("", ("term", "value"), rows, texts=2)
    table.columns[1].overflow = "fold"
    console.show(table)
