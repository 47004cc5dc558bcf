"""A comparison for other programs' pages: JUnit XML and Markdown."""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from perfmodel.validate.compare import COUNT, Change, Comparison, Status

_SUITE = "perfmodel check"


def junit(found: Comparison) -> str:
    """JUnit XML: a test case per trace, kind and name; what got worse is its failure."""
    suite = ElementTree.Element("testsuite", name=_SUITE)
    cases = failures = 0
    for key, group in groupby(found.changes, key=lambda c: (c.trace, c.kind, c.name)):
        trace, kind, name = map(_plain, key)
        case = ElementTree.SubElement(suite, "testcase", classname=trace, name=f"{kind} {name}")
        cases += 1
        failing = [change for change in group if change.fails]
        if failing:
            failures += 1
            text = "; ".join(map(in_words, failing))
            ElementTree.SubElement(case, "failure", message=_plain(text)).text = _plain(text)
    suite.set("tests", str(cases))
    suite.set("failures", str(failures))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    body = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def markdown(found: Comparison) -> str:
    """Markdown: one sentence, and a table of what got worse, better or is new."""
    lines = [f"### {_SUITE}: {'passed' if found.passed else 'failed'}", "", verdict(found), ""]
    told = [*found.failing, *found.of(Status.BETTER, Status.NEW)]
    if told:
        lines += ["| trace | kind | name | figure | baseline | now | |", "|---" * 7 + "|"]
        for change in told:
            sizes = (size(change, change.baseline), size(change, change.present))
            cells = (change.trace, change.kind, change.name, change.figure, *sizes, change.status)
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
        lines.append("")
    lines += [f"- {_plain(text)}" for text in found.warnings]
    return "\n".join(lines).rstrip() + "\n"


def verdict(found: Comparison) -> str:
    """The outcome in one sentence."""
    if found.passed:
        return f"{extent(found)}: none is worse than the baseline."
    worse, gone = len(found.of(Status.WORSE)), len(found.of(Status.GONE))
    parts = [f"{worse} worse than the baseline"] * bool(worse) + [f"{gone} gone"] * bool(gone)
    return f"{extent(found)}: {', '.join(parts)}."


def extent(found: Comparison) -> str:
    """How much was compared."""
    traces = len({change.trace for change in found.changes})
    return f"{len(found.changes)} figures of {traces} trace{'' if traces == 1 else 's'}"


def in_words(change: Change) -> str:
    """`step_left_out step mape_pct 1.20 -> 2.40`, as one line."""
    sizes = f"{size(change, change.baseline)} -> {size(change, change.present)}"
    return f"{change.kind} {change.name} {change.figure} {sizes} ({change.status.value})"


def size(change: Change, value: float | None) -> str:
    """A figure as text: percent to two places, or a count."""
    if value is None:
        return "-"
    return f"{value:.0f}" if change.figure == COUNT else f"{value:.2f} %"


def _cell(text: str) -> str:
    return _plain(str(text)).replace("|", "\\|")


def _plain(text: str) -> str:
    """Without characters that XML forbids or that would break a line."""
    return "".join(c if c.isprintable() else "?" for c in text)
