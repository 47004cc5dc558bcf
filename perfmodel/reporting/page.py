"""A prediction as one page of HTML that needs nothing else: figures, timeline, tables, sources."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel import __version__
from perfmodel.plot.names import named
from perfmodel.prediction.breakdown.completeness import incomplete
from perfmodel.prediction.breakdown.tables import MAX_ROWS
from perfmodel.prediction.types import MODEL, REPLAY
from perfmodel.reporting import tables
from perfmodel.reporting.brief import brief, lines_of, records_of, sound
from perfmodel.reporting.broken_down import BreakdownPage, about, gain_blocks
from perfmodel.reporting.predicted import prediction_blocks
from perfmodel.reporting.tables import Block, Column, Table
from perfmodel.reporting.tracks import Shown, timeline_data
from perfmodel.timeline.schedule import measured

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result
    from perfmodel.prediction.breakdown.job import Breakdown
    from perfmodel.prediction.gains import Helps
    from perfmodel.trace import Trace


PATH_ROWS = 60
"""Pieces of the critical path that the table shows."""
TITLES = {
    "measured": "Measured",
    "gains": "What would help",
    "timeline": "Timeline",
    "answer": "Answer",
    "hotspots": "Kernels, operators, modules",
    "summary": "Predicted",
    "tables": "Critical path by piece",
    "records": "Tables",
    "details": "Steps, rates, host overheads",
    "notes": "Assumptions and sources",
}
MAX_RANKS = 8
"""Ranks whose details the page shows, the slowest first."""
_PATH = tables.columns("us=time:us;frac=share:share;count:count;kind;piece")


def page_html(
    prediction: Prediction,
    helps: Sequence[Helps] = (),
    trace: Trace | None = None,
    found: Breakdown | None = None,
) -> str:
    """The page of `prediction`.

    `helps` is what would help each result most, without its what-ifs; of the `trace` behind it,
    boxes of the timeline say their operators and inputs, and `found` says where its time went: all
    that `perfmodel breakdown` prints. The same input gives the same bytes.
    """
    title, headline, *blocks = prediction_blocks(prediction)
    facts, headline = [str(title)], str(headline)
    contents = {
        "summary": _html(blocks),
        "gains": "".join(_gains(prediction, helps, found)),
        "timeline": _asset("timeline.html")
        + data("timeline-data", _timeline(prediction, trace, found)),
        "tables": "".join(sortable(_pieces(each)) for each in prediction.results),
        "notes": "".join(_notes(prediction)),
    }
    if found is not None:
        page, slowest, notes = BreakdownPage(found, MAX_ROWS), found.slowest, contents.pop("notes")
        contents["measured"] = _html([*page.ranks(), *page.causes(slowest)])
        contents |= {"hotspots": _html(page.hotspots()), "details": ""}
        for rank in sorted(found.ranks, key=lambda rank: rank is not slowest)[:MAX_RANKS]:
            causes = () if rank is slowest else page.causes(rank)
            contents["details"] += _html([*causes, *page.details(rank)])
        contents["notes"] = notes
        if _is_replay(prediction):
            headline = page.verdict(slowest, [each for listed, _ in helps for each in listed])
            facts = [about(found), *incomplete(found.gaps)]
            contents = {name: contents[name] for name in TITLES if name in contents}
    return _page(str(prediction.source["trace"]), headline, ", ".join(facts), contents)


def _html(blocks: Iterable[Block]) -> str:
    """Lines and tables, as a terminal shows them."""
    tags = {tables.Heading: "strong", tables.Command: "code"}
    return "".join(
        sortable(block)
        if isinstance(block, Table)
        else f"<p><{(tag := tags.get(type(block), 'span'))}>{escape(block.strip())}</{tag}></p>"
        for block in blocks
        if block
    )


def answer_html(answer: Mapping[str, Any], name: str) -> str:
    """The page of an answer that was stored as JSON under `name`: it in brief, and its tables.

    Raises `UsageError` for a damaged one.
    """
    with sound(str(answer["schema"]), name):
        told, made_by = brief(answer), answer.get("made_by", {})
        summary = {"Answer": told["answer"], "Largest parts": told["causes"]}
        rows, names = records_of(answer), ("design", "hardware", "step")
        summary["Critical path by what bounds it"] = [
            {key: row.get(key) for key in names} | {f"{part}_us": us for part, us in by.items()}
            for row in rows
            if isinstance(by := row.get("bound_by"), Mapping)
        ]
        contents = {
            "answer": "".join(_of_records(summary)),
            "records": "".join(_of_records({**answer, **rows[0]})),
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
            if kinds and kinds <= {int, float}:
                words, form, unit = tables.form_of(key)
                form = form or (tables.SIZE if float in kinds else ",d")
                heads.append(Column(key, f"{words}{unit}", form))
            elif kinds == {str}:
                heads.append(Column(key, key.replace("_", " ")))
        if heads:
            yield sortable(Table(title.replace("_", " "), heads, shown))


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
    return files("perfmodel.reporting").joinpath("assets", name).read_text("utf-8")


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def sortable(table: Table) -> str:
    """A table that the page's script sorts, filters and links to the timeline: numbers keep their
    full value to sort by, rows the full name of what they are of; shares are bars."""

    def cell(column: Column, value: object, text: str) -> str:
        about = "" if column.is_text else ' class="number"'
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            about += f' data-value="{value!r}"'
            if column.form == tables.SHARE:
                about += f' style="--share:{100 * value:.1f}%"'
        elif value is not None and str(value) != text:
            about += f' title="{escape(str(value))}"'
        return f"<td{about}>{escape(text)}</td>"

    def row(name: object, values: Sequence[object], texts: Sequence[str]) -> str:
        named = f' data-name="{escape(name)}"' if isinstance(name, str) and name else ""
        return f"<tr{named}>{''.join(map(cell, table.columns, values, texts))}</tr>"

    head = "".join(
        f'<th scope="col" aria-sort="none"{"" if column.is_text else " class=number"}>'
        f'<button type="button">{escape(column.head) or "&nbsp;"}</button></th>'
        for column in table.columns
    )
    body = "".join(map(row, table.names, table.values, table.rows()))
    return (
        f'<div class="wide"><table class="sortable"><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def data(name: str, value: Any) -> str:
    """`value` as JSON that the page's script reads; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


def _gains(
    prediction: Prediction, helps: Sequence[Helps], found: Breakdown | None
) -> Iterator[str]:
    """Per result the list, and of several or with what-ifs, of which step."""
    unrecorded = found.unrecorded if found else ""
    for result, (listed, lost) in zip(prediction.results, helps, strict=False):
        base, why = result.baseline or result, next(iter(lost), unrecorded)
        blocks = list(gain_blocks(listed, why))
        if base.mode != REPLAY or result.baseline:
            given = ", without the what-ifs of this page" if result.baseline else ""
            blocks.insert(0, f"On {result.hardware}{given}:")
        yield _html(blocks)


def _timeline(
    prediction: Prediction, trace: Trace | None, found: Breakdown | None
) -> dict[str, Any]:
    """What was measured, each result as predicted, and without its what-if; a replay comes behind
    what it replays, anything else before."""
    shown, real = list[Shown](), list[Shown]()
    for result in prediction.results:
        before, mark, is_of_trace = result.baseline, result.median_mark, result.mode != MODEL
        name = "what-if" if before else "predicted"
        shown.append(Shown(f"{name}, {result.hardware}", result.timeline, mark, is_of_trace))
        if before is not None:
            name = f"without the what-if, {before.hardware}"
            shown.append(Shown(name, before.timeline, before.median_mark, is_of_trace))
        if is_of_trace and not real:
            timeline = measured((before or result).timeline.graph)
            if found is not None:
                marks, step = timeline.graph.marks, tables.median_step(found.slowest.steps)
                named_so = np.array(marks.name, object) == step.name
                rows = np.flatnonzero(named_so & (marks.rank == found.slowest.rank))
                mark = int(rows[0]) if len(rows) else mark
            real.append(Shown("measured", timeline, mark, is_of_trace))
    return timeline_data([*real, *shown] if _is_replay(prediction) else [*shown, *real], trace)


def _is_replay(prediction: Prediction) -> bool:
    """Whether it is of what was measured, and nothing else."""
    return all(result.mode == REPLAY and not result.baseline for result in prediction.results)


def _pieces(result: Result) -> Table:
    """The critical path by piece."""
    pieces = defaultdict[tuple[str, str], list[float]](list)
    for each in result.critical_path:
        pieces[named(each.kind), each.name].append(each.duration_us)
    whole_us = sum(map(sum, pieces.values())) or 1.0
    records = [
        {"us": sum(us), "frac": sum(us) / whole_us, "count": len(us), "kind": kind, "piece": piece}
        for (kind, piece), us in sorted(pieces.items(), key=lambda item: -sum(item[1]))
    ]
    shown = f"the first {min(len(records), PATH_ROWS)}, {result.hardware}"
    return Table(f"Critical path by piece, {shown}", _PATH, records[:PATH_ROWS])


def _notes(prediction: Prediction) -> Iterator[str]:
    yield _items(prediction.warnings or ["no warnings"])
    for result in prediction.results:
        if result.assumed:
            what = "hardware values that are guesses, or were not checked against their source:"
            yield _paragraph(f"{result.hardware}: {what}")
            yield _items(
                f"{each.part}: {each.figure} = {each.value} {each.unit} ({each.source})"
                for each in result.assumed
            )
    for result in prediction.results:
        shares = ", ".join(f"{key} {value:g}" for key, value in result.coverage.items())
        yield _paragraph(f"{result.hardware}, coverage: {shares or 'measured kernels'}")
    source = ", ".join(f"{key} {value}" for key, value in prediction.source.items() if value)
    yield _paragraph(f"perfmodel {__version__}; {source}")
