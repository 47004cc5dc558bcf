"""`perfmodel export`: a timeline or a trace for other tools, or the execution graph."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
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
    from perfmodel.ops.graph import OpGraph
    from perfmodel.prediction import Result
    from perfmodel.timeline import Timeline
    from perfmodel.trace import Trace


class What(StrEnum):
    """What can be exported."""

    TIMELINE = "timeline"
    GRAPH = "graph"
    CHAKRA = "chakra"
    NSIGHT = "nsight"


_BY_SUFFIX = {".graphml": What.GRAPH, ".et": What.CHAKRA, ".sqlite": What.NSIGHT}


_USES = {
    What.TIMELINE: "the timeline; open it in ui.perfetto.dev or chrome://tracing",
    What.GRAPH: "the execution graph; open it with networkx.read_graphml, Gephi or yEd",
    What.CHAKRA: "a linked Chakra trace; a simulator such as ASTRA-sim takes it",
    What.NSIGHT: "the tables of an Nsight Systems export; perfmodel breakdown reads them",
}


@takes_prediction_options
def export(
    trace: TraceArgument,
    output: OutputOption = None,
    what: Annotated[
        What | None,
        typer.Option(
            help="timeline: JSON for ui.perfetto.dev and chrome://tracing, predicted next to "
            "measured. graph: GraphML. chakra: a linked trace for simulators, a file per rank. "
            "nsight: the tables of an Nsight Systems export. [default: graph for .graphml, chakra "
            "for .et, nsight for .sqlite, else timeline]",
        ),
    ] = None,
    options: PredictionOptions = DEFAULTS,
) -> None:
    """A timeline, a linked trace or a graph for other tools.

    \b
    Examples:
      perfmodel export trace.json.gz -o timeline.json
      perfmodel export trace.json.gz --scale host=0.5 -o what-if.json
      perfmodel export trace.json.gz --hardware h100-sxm --steps 2:4 -o h100.json
      perfmodel export trace.json.gz -o graph.graphml
      perfmodel export traces/ -o linked.et                  linked.0.et, linked.1.et, ...
    """
    chosen = what or _BY_SUFFIX.get(output.suffix.lower() if output else "", What.TIMELINE)
    if output:
        check_writable(output, trace)
        for each in options.sources:
            check_writable(output, str(each))
    if chosen is not What.TIMELINE:
        options.refuse_beside(f"a {chosen}: it is for a timeline", OF_READING)
    if options.hardware and len(options.hardware) > 1:
        raise UsageError("export takes one --hardware")
    options.check()
    content = options.content(trace)
    from perfmodel.files import atomic_write
    from perfmodel.trace import Trace

    with working("exporting"):
        if chosen is What.TIMELINE:
            written = {output: _timeline(options, content)}
        elif isinstance(content, Trace):
            written = _of_trace(chosen, content, output)
        else:
            raise UsageError(f"a {chosen} is of a trace: FILE.py:CLASS has a predicted timeline")
    for path, document in written.items():
        if path:
            with atomic_write(path) as file:
                file.write(document)
            wrote(path, _USES[chosen])
        else:
            sys.stdout.buffer.write(document)
            sys.stdout.buffer.flush()


def _timeline(options: PredictionOptions, content: Trace | OpGraph) -> bytes:
    from perfmodel.reporting import overlay_of, perfetto_json

    shown = _shown(options.predict(content).results[0])
    return perfetto_json(shown, {name: overlay_of(each) for name, each in shown.items()})


def _of_trace(what: What, trace: Trace, output: Path | None) -> dict[Path | None, bytes]:
    """What is written of a trace as it was measured, by file."""
    from perfmodel.graph import build_graph
    from perfmodel.graph.build import build_rank
    from perfmodel.reporting import chakra_linked, graphml

    if what is What.GRAPH:
        return {output: graphml(build_graph(trace))}
    if not trace.ranks:
        raise UsageError(f"{trace.source}: an execution trace alone has no times of kernels")
    if what is What.NSIGHT:
        from perfmodel.trace.nsight import nsight_sqlite

        return {output: nsight_sqlite(trace.ranks)}
    if output is None and len(trace.ranks) > 1:
        raise UsageError(f"{len(trace.ranks)} ranks are a file each: give -o NAME.et")
    alone = len(trace.ranks) == 1
    return {
        output and (output if alone else output.with_suffix(f".{rank.rank}{output.suffix}")): (
            chakra_linked(build_rank(rank, links), rank)
        )
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    }


def _shown(result: Result) -> dict[str, Timeline]:
    """What was measured, where it was, what is predicted, and of a what-if also without it."""
    from perfmodel.reporting.perfetto import BASELINE, MEASURED, PREDICTED, WHAT_IF
    from perfmodel.timeline.schedule import measured

    before = result.baseline
    shown = (
        {} if result.mode == Mode.MODEL else {MEASURED: measured((before or result).timeline.graph)}
    )
    if before is None:
        return shown | {PREDICTED: result.timeline}
    return shown | {BASELINE: before.timeline, WHAT_IF: result.timeline}
