"""A prediction as one page of HTML that needs nothing else: figures, timeline, tables, sources."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Any

from perfmodel import __version__
from perfmodel.base.units import human_us
from perfmodel.errors import LibraryError
from perfmodel.plot.names import named
from perfmodel.plot.style import svg_text
from perfmodel.prediction.shapes import MODEL
from perfmodel.reporting.brief import brief, lines_of, records_of
from perfmodel.reporting.predicted import prediction_blocks
from perfmodel.reporting.stored import sound
from perfmodel.reporting.tables import Column, Table, columns
from perfmodel.reporting.tracks import Shown, timeline_data
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.figures import parts_figure
from perfmodel.timeline.schedule import measured
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result
    from perfmodel.prediction.gains import Gain
    from perfmodel.trace import Trace


PATH_ROWS = 60
"""Pieces of the critical path that the table shows."""
EXPLAINED = 10
"""Of its longest nodes, how many are explained."""
ASSETS = "assets"
TITLES = {
    "gains": "Largest gains",
    "summary": "Summary",
    "timeline": "Timeline",
    "why": "Why",
    "tables": "Tables",
    "notes": "Assumptions and sources",
}
ASSUMED = "hardware values that are guesses, or were not checked against their source:"
_PATH = columns("us=time:us;frac=share:share;count:count;kind;piece")
_BOUNDS = columns("us=time:us;node:d;by;bound=bound by;source;piece;formula")


def page_html(
    prediction: Prediction, gains: Sequence[Sequence[Gain]] = (), trace: Trace | None = None
) -> str:
    """The page of `prediction`.

    `gains` is what would help each result most, without its what-ifs; of the `trace` behind it,
    boxes of the timeline say their operators and inputs. The same input gives the same bytes.
    """
    source, headline = prediction.source, "; ".join(map(_headline, prediction.results))
    facts = [str(source[key]) for key in ("trace", "stands_for", "device") if source.get(key)]
    if source.get("batch"):
        facts.append(f"batch {source['batch']:,}")
    contents = {
        "gains": "".join(_gains(prediction, gains)) if gains else "",
        "summary": "".join(_block(each) for each in prediction_blocks(prediction)),
        "timeline": _asset("timeline.html") + data("timeline-data", _timeline(prediction, trace)),
        "why": "".join(_pictures(prediction)),
        "tables": "".join(sortable(each) for of in prediction.results for each in _tables(of)),
        "notes": "".join(_notes(prediction)),
    }
    return _page(str(source["trace"]), headline, ", ".join(facts), contents)


def answer_html(answer: Mapping[str, Any], name: str) -> str:
    """The page of an answer that was stored as JSON under `name`: it in brief, and its tables.

    Raises `UsageError` for a damaged one.
    """
    with sound(str(answer["schema"]), name):
        told, made_by = brief(answer), answer.get("made_by", {})
        summary = {"Answer": told["answer"], "Largest parts": told["causes"]}
        contents = {
            "summary": "".join(_of_records(summary)),
            "tables": "".join(_of_records({**answer, **records_of(answer)[0]})),
            "notes": _items(answer.get("warnings") or ["no warnings"]),
        }
        made = ", ".join(f"{key} {value}" for key, value in made_by.items())
        about = "; ".join(filter(None, (answer["schema"], made)))
        return _page(name, lines_of(told)[0], about, contents)


def _of_records(values: Mapping[str, Any]) -> Iterator[str]:
    """A table of each list of records: the first of them, with their texts and numbers."""
    for title, records in values.items():
        if not isinstance(records, list) or not all(isinstance(each, Mapping) for each in records):
            continue
        heads, shown = list[Column](), records[:PATH_ROWS]
        for key in dict.fromkeys(chain.from_iterable(shown)):
            kinds = {type(each.get(key)) for each in shown} - {type(None)}
            if kinds <= {int, float}:
                form = "us" if key.endswith("_us") else ",.6g" if float in kinds else ",d"
                heads.append(Column(key, key, form))
            elif kinds == {str}:
                heads.append(Column(key, key))
        if heads:
            yield sortable(Table(title, heads, shown))


def _page(title: str, headline: str, about: str, contents: Mapping[str, str]) -> str:
    """Sections of HTML by name as one page; a name of `TITLES` without text is left out."""
    kept = {name: text for name, text in contents.items() if text}
    sections = (
        f'<section id="{name}"><h2>{escape(TITLES[name])}</h2>{text}</section>'
        for name, text in kept.items()
    )
    script = _asset("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return Template(_asset("page.html")).substitute(
        # A browser runs this script and no other, and loads nothing: names in a trace cannot.
        policy=(
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        title=escape(f"{title}: {headline}"),
        style=_asset("page.css"),
        headline=escape(headline),
        about=_paragraph(about),
        links="".join(f'<a href="#{name}">{escape(TITLES[name])}</a>' for name in kept),
        sections="".join(sections),
        script=script,
    )


def _asset(name: str) -> str:
    return files("perfmodel.reporting").joinpath(ASSETS, name).read_text("utf-8")


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _block(block: str | Table) -> str:
    return sortable(block) if isinstance(block, Table) else _paragraph(block) if block else ""


def sortable(table: Table) -> str:
    """A table whose headings are buttons that sort it; numbers keep their full value to sort by."""

    def cell(value: object, text: str) -> str:
        about = ""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            about = f' class="number" data-value="{value!r}"'
        elif value is not None and str(value) != text:
            about = f' title="{escape(str(value))}"'
        return f"<td{about}>{escape(text)}</td>"

    head = "".join(
        '<th scope="col" aria-sort="none">'
        f'<button type="button">{escape(column.head) or "&nbsp;"}</button></th>'
        for column in table.columns
    )
    body = "".join(
        f"<tr>{''.join(map(cell, values, texts))}</tr>"
        for values, texts in zip(table.values, table.rows(), strict=True)
    )
    return (
        f'<div class="wide"><table class="sortable"><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def data(name: str, value: Any) -> str:
    """`value` as JSON that the page's script reads; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


def _headline(result: Result) -> str:
    text = f"{human_us(result.step_us)} per batch on {result.hardware}"
    gain_us, gain_frac = result.gain["gain_us"], result.gain["gain_frac"]
    if result.baseline is None or gain_us is None:
        return text
    more, share = "less" if gain_us >= 0 else "more", abs(100 * (gain_frac or 0.0))
    saved = f"{human_us(abs(gain_us))} ({share:.1f} %) {more}"
    return f"{text}, {saved} than the {human_us(result.baseline.step_us)} without the what-if"


def _gains(prediction: Prediction, gains: Sequence[Sequence[Gain]]) -> Iterator[str]:
    """Per result the list; each line is the step's gain by one what-if, and its command."""
    for result, listed in zip(prediction.results, gains, strict=True):
        base = result.baseline or result
        given = ", without the what-ifs of this page" if result.baseline else ""
        of = f"a step of {human_us(base.step_us)} on {result.hardware}{given}"
        yield _paragraph(f"Simulated one at a time, of {of}:")
        lines = [
            f"<li>{escape(f'{each.name}: -{human_us(each.gain_us)}')}, "
            f"{100 * each.gain_frac:.1f} %: {escape(each.advice)}"
            f"<code>{escape(each.command)}</code></li>"
            for each in listed
        ]
        none = _paragraph("No what-if alone gains more than 1 % of the step.")
        yield f'<ol class="ranked">{"".join(lines)}</ol>' if lines else none


def _timeline(prediction: Prediction, trace: Trace | None) -> dict[str, Any]:
    shown = []
    for result in prediction.results:
        before, mark, is_of_trace = result.baseline, result.median_mark, result.mode != MODEL
        timelines = {"what-if" if before else "predicted": result.timeline}
        if before is not None:
            timelines["without the what-if"] = before.timeline
        if is_of_trace:
            timelines["measured"] = measured((before or result).timeline.graph)
        shown += [
            Shown(f"{name}, {result.hardware}", timeline, mark, is_of_trace)
            for name, timeline in timelines.items()
        ]
    return timeline_data(shown, trace)


def _pictures(prediction: Prediction) -> Iterator[str]:
    """The critical path of the median step by cause, measured and predicted; rooflines."""
    try:
        drawn = parts_figure(prediction.paths_by_cause(), title="Critical path by cause")
    except LibraryError as error:
        yield _paragraph(f"Not drawn: {error}")
        return
    pictures = [(drawn, "Every microsecond of the step has one cause; the bars sum to the step.")]
    for result in prediction.results:
        if result.mode == MODEL and result.coverage["kernels"]:
            pictures.append((result.roofline(), "Kernels below the roofs of the device."))
    for figure, caption in pictures:
        yield f"<figure>{svg_text(figure)}<figcaption>{escape(caption)}</figcaption></figure>"


def _tables(result: Result) -> Iterator[Table]:
    """The critical path by piece, and why its longest nodes take what they take."""
    name = result.hardware
    pieces: dict[tuple[str, str], list[float]] = {}
    for each in result.critical_path:
        pieces.setdefault((each.kind, each.name), []).append(each.duration_us)
    whole_us = sum(map(sum, pieces.values())) or 1.0
    records: list[dict[str, Any]] = [
        {
            "us": sum(us),
            "frac": sum(us) / whole_us,
            "count": len(us),
            "kind": named(kind),
            "piece": piece,
        }
        for (kind, piece), us in pieces.items()
    ]
    records.sort(key=lambda record: -record["us"])
    caption = f"Critical path by piece, the first {min(len(records), PATH_ROWS)}, {name}"
    yield Table(caption, _PATH, records[:PATH_ROWS])
    if result.explainer is not None and (reasons := list(_reasons(result))):
        title = "Critical path: its longest nodes and their bounds (more: predict --explain NODE)"
        yield Table(f"{title}, {name}", _BOUNDS, reasons)


def _reasons(result: Result) -> Iterator[dict[str, Any]]:
    """Why the longest nodes of the critical path take what they take."""
    assert result.explainer is not None
    path = critical_path(result.timeline, result.median_mark)
    taken = {piece.node: piece.end_us - piece.start_us for piece in path if piece.edge == NONE}
    for node in sorted(taken, key=lambda node: -taken[node])[:EXPLAINED]:
        reason = result.explainer.reason(node)
        yield {
            "us": taken[node],
            "node": node,
            "by": reason.what,
            "bound": reason.terms.get("bound_by", ""),
            "source": reason.terms.get("source") or reason.terms.get("profile") or "",
            "piece": result.timeline.graph.labels[node],
            "formula": reason.formula,
        }


def _notes(prediction: Prediction) -> Iterator[str]:
    yield _items(prediction.warnings or ["no warnings"])
    for result in prediction.results:
        if result.assumed:
            yield _paragraph(f"{result.hardware}: {ASSUMED}")
            yield _items(
                f"{each.part}: {each.figure} = {each.value} {each.unit} ({each.source})"
                for each in result.assumed
            )
    for result in prediction.results:
        shares = ", ".join(f"{key} {value:g}" for key, value in result.coverage.items())
        yield _paragraph(f"{result.hardware}, coverage: {shares or 'measured kernels'}")
    source = ", ".join(f"{key} {value}" for key, value in prediction.source.items() if value)
    yield _paragraph(f"perfmodel {__version__}; {source}")
