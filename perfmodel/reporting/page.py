"""A prediction as one page of HTML that needs nothing else: figures, timeline, tables, sources."""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from perfmodel import __version__
from perfmodel.hardware import Cluster, Node, Part
from perfmodel.hardware.catalogue import figures
from perfmodel.prediction.types import error_pct
from perfmodel.reporting.page_parts import (
    Shown,
    cards,
    data,
    items,
    numbered,
    paragraph,
    picture,
    section,
    sortable,
    timeline_data,
)
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.figures import comparison_figure
from perfmodel.timeline.schedule import measured
from perfmodel.trace.columns import NONE
from perfmodel.units import BYTES_PER_GB, human_us

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result
    from perfmodel.prediction.gains import Gain
    from perfmodel.trace import Trace


MODEL = "model"
"""The mode whose graphs hold nothing that was measured."""
PATH_ROWS = 60
"""Pieces of the critical path that the table shows."""
EXPLAINED = 10
"""Of its longest nodes, how many are explained."""
ASSETS = "perfmodel.reporting.assets"
TITLES = {
    "gains": "What would help most",
    "summary": "Figures",
    "timeline": "Timeline",
    "why": "Why",
    "tables": "Tables",
    "hardware": "Hardware",
    "notes": "Assumptions and sources",
}


def page_html(
    prediction: Prediction,
    machines: Sequence[Part] = (),
    gains: Sequence[Sequence[Gain]] = (),
    trace: Trace | None = None,
) -> str:
    """The page of `prediction`; `machines` are what it was predicted for, with their sources.

    `gains` is what would help each result most, without its what-ifs; of the `trace` behind it,
    boxes of the timeline say their operators and inputs. The same input gives the same bytes.
    """
    title = f"{prediction.source['trace']}: {_headline(prediction)}"
    contents = {
        "gains": _gains(prediction, gains) if gains else "",
        "summary": "".join(map(_summary, prediction.results)),
        "timeline": _timeline(prediction, trace),
        "why": "".join(_pictures(prediction)),
        "tables": "".join(_tables(prediction)),
        "hardware": "".join(map(_machine, machines)) or paragraph(OWN),
        "notes": "".join(_notes(prediction)),
    }
    kept = [name for name in contents if contents[name]]
    links = "".join(f'<a href="#{name}">{escape(TITLES[name])}</a>' for name in kept)
    sections = "".join(section(name, TITLES[name], contents[name]) for name in kept)
    script = _asset("page.js")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{_asset('page.css')}</style></head><body>"
        f"<header><h1>{escape(_headline(prediction))}</h1>{_about(prediction)}</header>"
        f'<nav aria-label="Sections">{links}</nav><main>{sections}</main>'
        f"<script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """A browser runs this script and no other, and asks for nothing: names in a trace cannot."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


ASSUMED = "figures that this prediction read and that are assumed, or recalled from a data sheet:"
OWN = "The machine that the trace was recorded on; nothing of it was predicted."


def _asset(name: str) -> str:
    return files(ASSETS).joinpath(name).read_text("utf-8")


def _headline(prediction: Prediction) -> str:
    return "; ".join(map(_head, prediction.results))


def _head(result: Result) -> str:
    text = f"{human_us(result.step_us)} per batch on {result.hardware}"
    change = result.gain
    if change is None:
        return text
    more = "less" if change.gain_us >= 0 else "more"
    share = 0.0 if change.gain_frac is None else abs(100 * change.gain_frac)
    saved = f"{human_us(abs(change.gain_us))} ({share:.1f} %) {more}"
    return f"{text}, {saved} than the {human_us(change.baseline_us)} without the what-if"


def _gains(prediction: Prediction, gains: Sequence[Sequence[Gain]]) -> str:
    """Per result the list; each line is the step's gain by one what-if, and its command."""
    shown = []
    for result, lists in zip(prediction.results, gains, strict=True):
        base = result.baseline or result
        given = ", without the what-ifs of this page" if result.baseline else ""
        step = f"Of a step of {human_us(base.step_us)} on {result.hardware}{given}, each alone:"
        rows = [
            (
                f"{gain.name}: -{human_us(gain.gain_us)}, {100 * gain.gain_frac:.1f} %: "
                f"{gain.advice}",
                gain.command,
            )
            for gain in lists
        ]
        none = paragraph("No what-if alone gains more than 1 % of the step.")
        shown.append(paragraph(step) + (numbered(rows) if rows else none))
    return "".join(shown)


def _about(prediction: Prediction) -> str:
    source = prediction.source
    facts = [str(source["trace"])]
    for key in ("stands_for", "device"):
        if source.get(key):
            facts.append(str(source[key]))
    if source.get("batch"):
        facts.append(f"batch {source['batch']:,}")
    return paragraph(", ".join(facts))


def _summary(result: Result) -> str:
    rank = result.rank
    shown = {"hardware": result.hardware, "mode": result.mode, "step": human_us(result.step_us)}
    if result.low_us is not None and result.high_us is not None:
        shown["90 % interval"] = f"{human_us(result.low_us)} to {human_us(result.high_us)}"
    if result.gain is not None:
        shown["without the what-if"] = human_us(result.gain.baseline_us)
        shown["gain"] = human_us(result.gain.gain_us)
        shown["gain of the step"] = f"{100 * (result.gain.gain_frac or 0.0):.1f} %"
    if rank.measured:
        error = error_pct(rank.step_us, rank.measured["step_us"])
        shown["measured"] = human_us(rank.measured["step_us"])
        shown["error"] = f"{error:+.1f} %" if error is not None else "none"
    if result.latency_us is not None:
        shown["one step alone"] = human_us(result.latency_us)
    if rank.gpu_active_us:
        shown["device busy"] = f"{100 * rank.gpu_active_us / rank.step_us:.0f} %"
        shown["exposed communication"] = human_us(rank.exposed_comm_us)
    if result.memory:
        shown["device memory"] = f"{result.memory['total_bytes'] / BYTES_PER_GB:.1f} GB"
    if result.bound_by:
        shown["bound by"] = next(iter(result.bound_by))
    return cards(shown)


def _timeline(prediction: Prediction, trace: Trace | None) -> str:
    shown = []
    for result in prediction.results:
        before, mark, is_of_trace = result.baseline, result.median_mark, result.mode != MODEL
        name = f"{'what-if' if before else 'predicted'}, {result.hardware}"
        shown.append(Shown(name, result.timeline, mark, is_of_trace))
        if before is not None:
            name = f"without the what-if, {result.hardware}"
            shown.append(Shown(name, before.timeline, mark, is_of_trace))
        if is_of_trace:
            truth = measured((before or result).timeline.graph)
            shown.append(Shown(f"measured, {result.hardware}", truth, mark, is_of_trace))
    buttons = "".join(
        f'<button type="button" data-key="{key}" aria-label="{label}">{text}</button>'
        for key, label, text in (
            ("+", "zoom in", "+"),
            ("-", "zoom out", "&minus;"),
            ("ArrowLeft", "earlier", "&larr;"),
            ("ArrowRight", "later", "&rarr;"),
            ("0", "show all", "all"),
        )
    )
    choices = "".join(
        f'<label>{name.capitalize()} <select name="{name}"></select></label>'
        for name in ("mode", "step", "rank")
    )
    hints = " ".join(
        f"<span><kbd>{escape(key)}</kbd> {text}</span>"
        for key, text in (
            ("click", "a box: what it is;"),
            (", .", "the boxes beside it;"),
            ("drag", "or"),
            ("\u2190 \u2192", "move;"),
            ("+ \u2212 0", "or"),
            ("Ctrl + wheel", "zoom;"),
            ("/", "search,"),
            ("Enter", "the next;"),
            ("Esc", "close. After a click the wheel alone zooms."),
        )
    )
    return (
        f'<div class="controls">{choices}{buttons}'
        '<label>Search <input type="search" placeholder="kernel, operator"></label>'
        '<output id="hits"></output></div>'
        '<canvas tabindex="0" role="img"></canvas><p id="note"></p>'
        '<p id="told" aria-live="polite"></p>'
        '<div id="detail" role="region" aria-label="What is known of the box" hidden><dl></dl>'
        '<button type="button" aria-label="close">&times;</button></div>'
        f'<ul class="legend"></ul><p class="hints">{hints}</p>'
        f'<p class="hints">The line is the critical path, on whatever rank it is.</p>'
        f"{data('timeline-data', timeline_data(shown, trace))}"
    )


def _pictures(prediction: Prediction) -> Iterator[str]:
    """The critical path of the median step by cause, measured beside predicted."""
    first = prediction.results[0]
    name = first.timeline.graph.marks.name[first.median_mark]
    drawn = comparison_figure({name: prediction.paths_by_cause()}, title="Critical path by cause")
    yield picture(drawn, "Every microsecond of the step has one cause; the bars sum to the step.")
    for result in prediction.results:
        if result.kernels is not None and result.kernels.flop.any():
            yield picture(result.roofline(), "Kernels below the roofs of the device.")


def _tables(prediction: Prediction) -> Iterator[str]:
    for result in prediction.results:
        name = result.hardware
        if result.families:
            columns = list(result.families[0])
            rows = [list(family.values()) for family in result.families]
            yield sortable(columns, rows, f"Kernels by family, {name}")
        ranks = [
            {key: value for key, value in rank.items() if not isinstance(value, (dict, list))}
            for rank in result.to_dict()["per_rank"]
        ]
        yield sortable(list(ranks[0]), [list(rank.values()) for rank in ranks], f"Ranks, {name}")
        yield _steps(result)
        pieces = _summed(result)
        caption = f"Critical path by piece, the first {min(len(pieces), PATH_ROWS)}, {name}"
        of_piece = ("time_us", "share_frac", "count", "kind", "piece")
        yield sortable(of_piece, pieces[:PATH_ROWS], caption)
        yield from _grounds(result)


def _steps(result: Result) -> str:
    """The slowest rank's steps, beside what was measured or what they are without the what-if."""
    rows: list[Sequence[object]]
    if result.baseline is None:
        columns: Sequence[str] = ("step", "predicted_us", "measured_us", "error_pct", "role")
        rows = [
            (step.name, step.step_us, step.measured_us, step.error_pct, step.role)
            for step in result.rank.steps
        ]
    else:
        columns = ("step", "what_if_us", "baseline_us", "gain_us", "gain_frac", "role")
        rows = [
            (step.name, step.step_us, c.baseline_us, c.gain_us, c.gain_frac, step.role)
            for step, c in zip(result.rank.steps, result.gains_of_steps(), strict=True)
            if c is not None
        ]
    return sortable(columns, rows, f"Steps of rank {result.rank.rank}, {result.hardware}")


def _grounds(result: Result) -> Iterator[str]:
    """Why the longest nodes of the critical path take what they take."""
    if result.explainer is None:
        return
    path = critical_path(result.timeline, result.median_mark)
    taken = {piece.node: piece.end_us - piece.start_us for piece in path if piece.edge == NONE}
    longest = sorted(taken, key=lambda node: -taken[node])[:EXPLAINED]
    labels, rows = result.timeline.graph.labels, []
    for node in longest:
        reason = result.explainer.reason(node)
        source = reason.terms.get("source") or reason.terms.get("profile") or ""
        bound = reason.terms.get("bound_by", "")
        rows.append((taken[node], node, reason.what, bound, source, labels[node], reason.formula))
    if rows:
        columns = ("time_us", "node", "by", "bound by", "source", "piece", "formula")
        title = "Critical path: its longest nodes and their bounds (more: predict --explain NODE)"
        yield sortable(columns, rows, f"{title}, {result.hardware}")


def _summed(result: Result) -> list[tuple[float, float, int, str, str]]:
    """Pieces of the critical path of one name and kind together, the longest first."""
    times_us: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for piece in result.critical_path:
        times_us[piece.kind, piece.name].append(piece.duration_us)
    whole_us = sum(map(sum, times_us.values())) or 1.0
    rows = [(sum(each), sum(each) / whole_us, len(each), *key) for key, each in times_us.items()]
    return sorted(rows, key=lambda row: -row[0])


def _machine(part: Part) -> str:
    rows = [
        (each.name, figure.key, figure.value, figure.source)
        for each in _parts(part)
        for figure in figures(each)
    ]
    return sortable(("part", "figure", "value", "source"), rows, f"Figures of {part.name}")


def _parts(part: Part) -> Iterator[Part]:
    """A machine and what is in it."""
    yield part
    inside: tuple[object, ...] = ()
    if isinstance(part, Cluster):
        inside = (part.node,)
    elif isinstance(part, Node):
        inside = (part.device, part.host, part.link, part.nic)
    for each in inside:
        if isinstance(each, Part):
            yield from _parts(each)


def _notes(prediction: Prediction) -> Iterator[str]:
    yield items(prediction.warnings or ["no warnings"])
    for result in prediction.results:
        if result.assumed:
            yield paragraph(f"{result.hardware}: {ASSUMED}")
            yield items(
                f"{each.part}: {each.figure} = {each.value} {each.unit} ({each.source})"
                for each in result.assumed
            )
    for result in prediction.results:
        shares = ", ".join(f"{key} {value:g}" for key, value in result.coverage.items())
        yield paragraph(f"{result.hardware}, coverage: {shares or 'measured kernels'}")
    source = ", ".join(f"{key} {value}" for key, value in prediction.source.items() if value)
    yield paragraph(f"perfmodel {__version__}; {source}")
