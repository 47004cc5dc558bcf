"""`perfmodel export`: a timeline for Perfetto, or the execution graph as GraphML."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    HardwareOption,
    MaxMemoryOption,
    OutputOption,
    RemoveOption,
    ScaleOption,
    StrictOption,
    TraceArgument,
    max_bytes,
)
from perfmodel.cli.output import check_writable, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.trace import Trace


class What(StrEnum):
    """What can be exported."""

    TIMELINE = "timeline"
    GRAPH = "graph"


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
    hardware: HardwareOption = None,
    scale: ScaleOption = None,
    remove: RemoveOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """A timeline for Perfetto, or the execution graph as GraphML.

    \b
    Examples:
      perfmodel export trace.json.gz -o timeline.json
      perfmodel export trace.json.gz --scale host=0.5 -o what-if.json
      perfmodel export trace.json.gz -o graph.graphml
    """
    chosen = what or _by_suffix(output)
    if output:
        check_writable(output, trace)
    if chosen is What.GRAPH and (hardware or scale or remove):
        raise UsageError("--hardware, --scale and --remove are for a timeline, not for the graph")
    if hardware and len(hardware) > 1:
        raise UsageError("export takes one --hardware")
    limit = max_bytes(max_memory)

    from perfmodel.trace import read

    with working(f"reading {trace}"):
        content = read(trace, strict=strict, max_bytes=limit)
    with working("exporting"):
        if chosen is What.GRAPH:
            written = _graph(content)
        else:
            written = _timeline(content, hardware or [], scale or [], remove or [])
    _write(written, output)


def _by_suffix(path: Path | None) -> What:
    return What.GRAPH if path and path.suffix.lower() == ".graphml" else What.TIMELINE


def _graph(trace: Trace) -> bytes:
    from perfmodel.graph import build_graph
    from perfmodel.report import graphml

    return graphml(build_graph(trace))


def _timeline(trace: Trace, hardware: list[str], scale: list[str], remove: list[str]) -> bytes:
    from perfmodel.prediction import predict
    from perfmodel.report import overlay_of, perfetto_json
    from perfmodel.timeline.schedule import measured

    found = predict(trace, hardware=hardware, scale=scale, remove=remove)
    predicted = found.results[0].timeline
    truth = measured(predicted.graph)
    overlays = {"predicted": overlay_of(predicted), "measured": overlay_of(truth)}
    return perfetto_json(predicted, truth, overlays)


def _write(content: bytes, path: Path | None) -> None:
    from perfmodel.files import atomic_write

    if path:
        with atomic_write(path) as file:
            file.write(content)
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
