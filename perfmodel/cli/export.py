"""`perfmodel export`: a timeline for Perfetto, or the execution graph as GraphML."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import OutputOption, TraceArgument
from perfmodel.cli.output import check_writable, working
from perfmodel.cli.prediction_options import (
    DEFAULTS,
    OF_READING,
    Mode,
    PredictionOptions,
    takes_prediction_options,
)
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.prediction import Result
    from perfmodel.timeline import Timeline
    from perfmodel.trace import Trace


class What(StrEnum):
    """What can be exported."""

    TIMELINE = "timeline"
    GRAPH = "graph"


@takes_prediction_options
def export(
    trace: TraceArgument,
    output: OutputOption = None,
    what: Annotated[
        Optional[What],  # noqa: UP045
        typer.Option(
            help="timeline: JSON for ui.perfetto.dev and chrome://tracing, predicted next to "
            "measured. graph: GraphML. [default: graph for .graphml, else timeline]",
        ),
    ] = None,
    options: PredictionOptions = DEFAULTS,
) -> None:
    """A timeline for Perfetto, or the execution graph as GraphML.

    \b
    Examples:
      perfmodel export trace.json.gz -o timeline.json
      perfmodel export trace.json.gz --scale host=0.5 -o what-if.json
      perfmodel export trace.json.gz --hardware h100-sxm --steps 2:4 -o h100.json
      perfmodel export trace.json.gz -o graph.graphml
    """
    chosen = what or _by_suffix(output)
    if output:
        check_writable(output, trace)
        for each in options.sources:
            check_writable(output, str(each))
    if chosen is What.GRAPH:
        options.refuse_beside("a graph: it is for a timeline", OF_READING)
    if options.hardware and len(options.hardware) > 1:
        raise UsageError("export takes one --hardware")
    options.check()
    content, _ = options.read(trace)
    with working("exporting"):
        written = _graph(content) if chosen is What.GRAPH else _timelines(content, options)
    _write(written, output)


def _by_suffix(path: Path | None) -> What:
    return What.GRAPH if path and path.suffix.lower() == ".graphml" else What.TIMELINE


def _graph(trace: Trace) -> bytes:
    from perfmodel.graph import build_graph
    from perfmodel.report import graphml

    return graphml(build_graph(trace))


def _timelines(trace: Trace, options: PredictionOptions) -> bytes:
    from perfmodel.report import overlay_of, perfetto_json

    found = _shown(options.predict(trace).results[0])
    return perfetto_json(found, {name: overlay_of(each) for name, each in found.items()})


def _shown(result: Result) -> dict[str, Timeline]:
    """What was measured, where it was, what is predicted, and of a what-if also without it."""
    from perfmodel.report.perfetto import BASELINE, MEASURED, PREDICTED, WHAT_IF
    from perfmodel.timeline.schedule import measured

    before = result.baseline
    shown = (
        {} if result.mode == Mode.MODEL else {MEASURED: measured((before or result).timeline.graph)}
    )
    if before is None:
        return shown | {PREDICTED: result.timeline}
    return shown | {BASELINE: before.timeline, WHAT_IF: result.timeline}


def _write(content: bytes, path: Path | None) -> None:
    from perfmodel.files import atomic_write

    if path:
        with atomic_write(path) as file:
            file.write(content)
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
