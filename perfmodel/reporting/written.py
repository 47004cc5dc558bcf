"""Predictions and traces as files for others: a page, a timeline, a linked trace, a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import atomic_write, check_writable, is_stdout, suffix_of, write_text
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.prediction.gains import Helps
    from perfmodel.prediction.types import Prediction
    from perfmodel.trace import Trace


def report(source: Any, path: str | Path = "report.html", **options: Any) -> Path:
    """Write one page of a prediction, for any browser.

    Parameters:
        source: a `Prediction`, the path of an answer that a verb wrote as JSON, or what `predict`
            takes, with its `options`.

    Returns: the page's path.
    Raises: `UsageError` for `options` beside a prediction that is made already, and where `path` is
    the trace itself.
    Example: `perfmodel.report("demo:", "page.html")`.
    """
    from perfmodel.prediction.request import sourced
    from perfmodel.prediction.run import predict
    from perfmodel.prediction.types import Prediction
    from perfmodel.reporting.brief import stored_answer
    from perfmodel.reporting.page import answer_html

    path, is_path = Path(path), isinstance(source, (str, Path))
    require_page(path)
    check_writable(path, source if is_path else None)
    answer = stored_answer(source) if is_path else None
    if (answer or isinstance(source, Prediction)) and options:
        raise UsageError(f"{next(iter(options))}: the prediction is made already")
    if answer:
        write_text(path, answer_html(answer, str(source)))
        return path
    content = source if isinstance(source, Prediction) else sourced(source)
    prediction = content if isinstance(content, Prediction) else predict(content, **options)
    write_text(path, page_of(prediction, content, str(prediction.source["trace"])))
    return path


def page_of(
    prediction: Prediction,
    content: Any,
    source: str | None,
    hardware: Sequence[str] = (),
    options: Sequence[str] = (),
    near: Trace | None = None,
) -> str:
    """The page of what was predicted of `content`, with what would help (`gains_of`); of a trace
    whose times it is made from, also with where these went, by the steps `near` those predicted
    where it has them."""
    from dataclasses import replace

    from perfmodel.prediction.breakdown.job import breakdown
    from perfmodel.prediction.types import MODEL
    from perfmodel.reporting.page import page_html
    from perfmodel.trace import Trace

    trace, found = content if isinstance(content, Trace) else None, None
    if trace is not None and any(result.mode != MODEL for result in prediction.results):
        recorded = near or trace
        found = breakdown(recorded)
        found = replace(found, ranks=[rank.of_steps(recorded.chosen) for rank in found.ranks])
    helps = gains_of(prediction, source, hardware, options)
    return page_html(prediction, helps, trace, found)


def require_page(path: Path) -> None:
    """Raise `UsageError` for a name that is no page's."""
    if path.suffix.lower() not in (".html", ".htm") and not is_stdout(path):
        raise UsageError(f"{path}: a page is written as .html")


def gains_of(
    prediction: Prediction,
    source: str | None,
    hardware: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[Helps]:
    """Per result what would help most, without its what-ifs, with commands as `predict_words` has
    them; from shapes alone without one. `hardware` are the names that were given for the results,
    by default their own."""
    from perfmodel.prediction.gains import gains_or_why, predict_words
    from perfmodel.prediction.types import MODEL, REPLAY

    helps = []
    for number, result in enumerate(prediction.results):
        before = result.baseline or result
        timeline, is_model = before.timeline, before.mode == MODEL
        own = [] if before.mode == REPLAY else [before.hardware]
        names = hardware[number : number + 1] or own
        words = [] if is_model else predict_words(timeline.graph, source, names, options)
        taken_us = timeline.end_us - timeline.start_us
        helps.append(gains_or_why(timeline.graph, taken_us, words, straggler=before.straggler))
    return helps


TIMELINE, GRAPH, CHAKRA = ("timeline", "graph", "linked trace")
"""What can be exported."""
_BY_SUFFIX = {".graphml": GRAPH, ".et": CHAKRA}


def exported(path: Path) -> str:
    """What a file of that name is for."""
    return _BY_SUFFIX.get(suffix_of(path), TIMELINE)


def export(source: str | Path | Trace | Prediction, path: str | Path) -> list[Path]:
    """Write a timeline, a linked trace or a graph for other tools.

    Parameters:
        path: the suffix says what is written: `.graphml` a graph, `.et` a linked trace of Chakra, a
            file per rank, of a trace; any other a timeline (JSON for ui.perfetto.dev: of a
            prediction beside what was measured).

    Returns: the files written.
    Raises: `PerfmodelError` for what cannot be read, predicted or written.
    Example: `perfmodel.export("demo:", "demo.graphml")`.
    """
    from perfmodel.prediction.request import sourced
    from perfmodel.prediction.run import predict
    from perfmodel.prediction.types import MODEL, Prediction
    from perfmodel.reporting.perfetto import chakra_linked, graphml, perfetto_json
    from perfmodel.timeline.graph import build_graph
    from perfmodel.timeline.graph.build import build_rank
    from perfmodel.timeline.schedule import measured
    from perfmodel.trace import Trace

    path = Path(path)
    if not is_stdout(path):
        check_writable(path, source if isinstance(source, (str, Path)) else None)
    what, found = exported(path), dict[Path, bytes]()
    content: Any = source if isinstance(source, Prediction) else sourced(source)
    if what == TIMELINE:
        made = content if isinstance(content, Prediction) else predict(content)
        result = made.results[0]
        before, shown = result.baseline, {}
        if result.mode != MODEL:
            shown["measured"] = measured((before or result).timeline.graph)
        if before is None:
            shown["predicted"] = result.timeline
        else:
            shown |= {"baseline": before.timeline, "what-if": result.timeline}
        found[path] = perfetto_json(shown)
    elif not isinstance(content, Trace):
        raise UsageError(f"a {what} is of a trace, not of a prediction or FILE.py:CLASS")
    elif what == GRAPH:
        found[path] = graphml(build_graph(content))
    elif not content.ranks:
        raise UsageError(f"{content.source}: an execution trace alone has no times of kernels")
    else:
        for rank, links in zip(content.ranks, content.links, strict=True):
            several = content.ranks[1:]  # which have a file each
            place = path.with_suffix(f".{rank.rank}{path.suffix}") if several else path
            found[place] = chakra_linked(build_rank(rank, links), rank)
    for each, document in found.items():
        with atomic_write(each) as file:
            file.write(document)
    return list(found)
