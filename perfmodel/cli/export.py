"""`perfmodel export`: a timeline for Perfetto, or the execution graph as GraphML."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import OutputOption, TraceArgument
from perfmodel.cli.output import check_writable, working, wrote
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


class What(StrEnum):
    """What can be exported."""

    TIMELINE = "timeline"
    GRAPH = "graph"


_USES = {
    What.TIMELINE: "the timeline; open it in ui.perfetto.dev or chrome://tracing",
    What.GRAPH: "the execution graph; open it with networkx.read_graphml, Gephi or yEd",
}


@takes_prediction_options
def export(
    trace: TraceArgument,
    output: OutputOption = None,
    what: Annotated[
        What | None,
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
    by_suffix = What.GRAPH if output and output.suffix.lower() == ".graphml" else What.TIMELINE
    chosen = what or by_suffix
    if output:
        check_writable(output, trace)
        for each in options.sources:
            check_writable(output, str(each))
    if chosen is What.GRAPH:
        options.refuse_beside("a graph: it is for a timeline", OF_READING)
    if options.hardware and len(options.hardware) > 1:
        raise UsageError("export takes one --hardware")
    options.check()
    content = options.content(trace)
    from perfmodel.files import atomic_write
    from perfmodel.graph import build_graph
    from perfmodel.report import graphml, overlay_of, perfetto_json
    from perfmodel.trace import Trace

    with working("exporting"):
        if chosen is What.GRAPH:
            if not isinstance(content, Trace):
                raise UsageError("a graph is of a trace: FILE.py:CLASS has a predicted timeline")
            written = graphml(build_graph(content))
        else:
            shown = _shown(options.predict(content).results[0])
            overlays = {name: overlay_of(each) for name, each in shown.items()}
            written = perfetto_json(shown, overlays)
    if output:
        with atomic_write(output) as file:
            file.write(written)
        wrote(output, _USES[chosen])
    else:
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.flush()


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
