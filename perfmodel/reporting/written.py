"""Predictions and traces as files for others: a page, a timeline, a linked trace, a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import suffix_of

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.graph.types import ExecutionGraph
    from perfmodel.hardware import Part
    from perfmodel.prediction.gains import Gain
    from perfmodel.prediction.types import Prediction, Result
    from perfmodel.timeline.schedule import Timeline
    from perfmodel.trace import Trace


PAGES = (".html", ".htm")


def report(source: Any, path: str | Path = "report.html", **options: Any) -> Path:
    """Write one page of a prediction, for any browser; its path.

    `source` is a `Prediction`, or what `predict` takes, with its `options`. Of a `Prediction` the
    page has the sources of those machines alone that the catalogue knows by name. Raises
    `UsageError` for `options` beside a `Prediction`, and where `path` is the trace itself.
    """
    from perfmodel.files import check_writable, write_text
    from perfmodel.prediction.request import sourced
    from perfmodel.prediction.run import REPLAY, predict
    from perfmodel.prediction.types import Prediction
    from perfmodel.reporting.page import page_html
    from perfmodel.trace import Trace

    path = Path(path)
    require_page(path)
    check_writable(path, source if isinstance(source, (str, Path)) else None)
    if isinstance(source, Prediction) and options:
        raise UsageError(f"{next(iter(options))}: the prediction is made already")
    content = source if isinstance(source, Prediction) else sourced(source)
    prediction = content if isinstance(content, Prediction) else predict(content, **options)
    recorded = content if isinstance(content, Trace) else None
    trace = str(prediction.source["trace"])

    def command(number: int, result: Result) -> list[str]:
        hardware = [] if result.mode == REPLAY else [result.hardware]
        return predict_words(result.timeline.graph, trace, hardware=hardware)

    helps = gains_of(prediction, command)
    machines = _machines(prediction, options.get("hardware", ()))
    write_text(path, page_html(prediction, machines, helps, recorded))
    return path


def _machines(prediction: Prediction, given: Any) -> list[Part]:
    """The machines `given`, or else those of a prediction's results that the catalogue knows."""
    from perfmodel.errors import PerfmodelError
    from perfmodel.hardware import Part, load

    several = (
        [given] if isinstance(given, (str, Part)) or not isinstance(given, Iterable) else given
    )
    if listed := list(several):
        return [load(each) if isinstance(each, (str, Path)) else each for each in listed]
    machines = []
    for result in prediction.results:
        try:
            machines.append(load(result.hardware))
        except PerfmodelError:  # a machine of the user's, or the trace's own
            continue
    return machines


def require_page(path: Path) -> None:
    """Raise `UsageError` for a name that is no page's."""
    if path.suffix.lower() not in PAGES:
        raise UsageError(f"{path}: a page is written as .html")


def predict_words(
    graph: ExecutionGraph,
    source: str | None,
    *,
    reading: Sequence[str] = (),
    hardware: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[str]:
    """The words of `perfmodel predict` for a trace (None: the demo) read with the options `reading`
    and without what-ifs.

    `--keep-contention` stands where collectives may slow kernels down: what they cost one another
    takes far longer to work out anew than a schedule.
    """
    from perfmodel.graph.kinds import NodeKind

    words = ["perfmodel", "predict", *([source] if source is not None else []), *reading]
    for name in hardware:
        words += ["--hardware", name]
    for text in settings:
        words += ["--set", text]
    if not hardware and (graph.nodes_.kind[graph.on_device] == NodeKind.COLLECTIVE).any():
        words.append("--keep-contention")
    return words


def gains_of(
    prediction: Prediction, command: Callable[[int, Result], Sequence[str]]
) -> list[list[Gain]]:
    """Per result what would help most, without its what-ifs; none from shapes alone, of which
    nothing can be scaled. `command` gives the words that predict a result, the n-th, without."""
    from perfmodel.prediction.gains import gains
    from perfmodel.prediction.shapes import MODEL

    if any(result.mode == MODEL for result in prediction.results):
        return []
    helps = []
    for number, result in enumerate(prediction.results):
        before = result.baseline or result
        timeline = before.timeline
        taken_us = timeline.end_us - timeline.start_us
        helps.append(
            gains(timeline.graph, taken_us, command(number, before), straggler=before.straggler)
        )
    return helps


class What(StrEnum):
    """What can be exported."""

    TIMELINE = "timeline"
    GRAPH = "graph"
    CHAKRA = "chakra"
    OP = "op"


_BY_SUFFIX = {".graphml": What.GRAPH, ".et": What.CHAKRA, ".py": What.OP}


def exported(path: Path | None, what: str | None = None) -> What:
    """What a file of that name is for, unless `what` says it."""
    if what is not None and what not in list(What):
        raise UsageError(f"export: unknown {what!r}; one of {', '.join(What)}")
    return What(what or _BY_SUFFIX.get(suffix_of(path) if path else "", What.TIMELINE))


def export(
    source: str | Path | Trace | Prediction | pd.DataFrame,
    path: str | Path,
    what: str | None = None,
    name: str = "",
) -> list[Path]:
    """Write a timeline, a linked trace or a graph for other tools; the files written.

    `what` is `timeline` (JSON for ui.perfetto.dev: of a prediction beside what was measured),
    `graph` (GraphML), `chakra` (a linked trace, a file per rank) or `op` (a PyTorch file that runs
    the operator `name`): of a trace; by default the suffix of `path` decides.
    """
    from perfmodel.files import atomic_write, check_writable
    from perfmodel.prediction.request import sourced
    from perfmodel.prediction.run import predict
    from perfmodel.prediction.types import Prediction

    path = Path(path)
    check_writable(path, source if isinstance(source, (str, Path)) else None)
    chosen = exported(path, what)
    require_name(chosen, name)
    content = source if isinstance(source, Prediction) else sourced(source)
    found = documents(chosen, content, path, name, predict)
    for each, document in found.items():
        assert each is not None
        with atomic_write(each) as file:
            file.write(document)
    return [each for each in found if each]


def timeline_json(result: Result) -> bytes:
    """What was measured, where it was, what is predicted, and of a what-if also without it."""
    from perfmodel.prediction.shapes import MODEL
    from perfmodel.reporting.perfetto import (
        BASELINE,
        MEASURED,
        PREDICTED,
        WHAT_IF,
        perfetto_json,
    )
    from perfmodel.reporting.tracks import overlay_of
    from perfmodel.timeline.schedule import measured

    before = result.baseline
    shown: dict[str, Timeline] = {}
    if result.mode != MODEL:
        shown[MEASURED] = measured((before or result).timeline.graph)
    if before is None:
        shown[PREDICTED] = result.timeline
    else:
        shown |= {BASELINE: before.timeline, WHAT_IF: result.timeline}
    return perfetto_json(shown, {name: overlay_of(each) for name, each in shown.items()})


def require_name(what: What, name: str) -> None:
    """Raise `UsageError` where an operator has no name, or anything else has one."""
    if what is What.OP and not name:
        raise UsageError("an op: give --name, such as aten::addmm")
    if name and what is not What.OP:
        raise UsageError(f"--name: a {what} is of the whole trace; --what op is of one operator")


def documents(
    what: What, content: Any, path: Path | None, name: str, predicted: Callable[[Any], Prediction]
) -> dict[Path | None, bytes]:
    """What is written of a prediction, or of a trace or ops that `predicted` makes one of, by file;
    ranks of a linked trace have one each. `name` is that of the operator of an `op`."""
    from perfmodel.graph import build_graph
    from perfmodel.graph.build import build_rank
    from perfmodel.prediction.types import Prediction
    from perfmodel.reporting import chakra_linked, graphml
    from perfmodel.trace import Trace

    if what is What.TIMELINE:
        prediction = content if isinstance(content, Prediction) else predicted(content)
        return {path: timeline_json(prediction.results[0])}
    if not isinstance(content, Trace):
        raise UsageError(f"a {what} is of a trace, not of a prediction or FILE.py:CLASS")
    if what is What.GRAPH:
        return {path: graphml(build_graph(content))}
    if not content.ranks:
        raise UsageError(f"{content.source}: an execution trace alone has no times of kernels")
    if what is What.OP:
        from perfmodel.reporting.operator_script import operator_script

        return {path: operator_script(content, name, path.name if path else "op.py").encode()}
    if path is None and len(content.ranks) > 1:
        raise UsageError(f"{len(content.ranks)} ranks are a file each: give -o NAME.et")
    is_one = len(content.ranks) == 1
    return {
        path and (path if is_one else path.with_suffix(f".{rank.rank}{path.suffix}")): (
            chakra_linked(build_rank(rank, links), rank)
        )
        for rank, links in zip(content.ranks, content.links, strict=True)
    }
