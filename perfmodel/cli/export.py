"""`perfmodel export`: a timeline or a trace for other tools, or the execution graph."""

from __future__ import annotations

import sys
from pathlib import Path

from perfmodel.base.files import atomic_write
from perfmodel.cli.output import check_target, working, wrote
from perfmodel.cli.prediction_options import DEFAULTS, OF_READING, PredictionOptions
from perfmodel.errors import UsageError
from perfmodel.reporting.written import What, documents, exported

_USES = {
    What.TIMELINE: "the timeline; open it in ui.perfetto.dev or chrome://tracing",
    What.GRAPH: "the execution graph; open it with networkx.read_graphml, Gephi or yEd",
    What.CHAKRA: "a linked Chakra trace; a simulator such as ASTRA-sim takes it",
}


def export(
    trace: str,
    output: Path | None = None,
    what: What | None = None,
    options: PredictionOptions = DEFAULTS,
) -> None:
    """A timeline, a linked trace or a graph for other tools."""
    chosen = exported(output, what)
    check_target(output)
    if chosen is not What.TIMELINE:
        options.refuse_beside(f"a {chosen}: it is for a timeline", OF_READING)
    if options.hardware and len(options.hardware) > 1:
        raise UsageError("export takes one --hardware")
    options.check()
    content = options.content(trace)
    source = options.predict(content) if chosen is What.TIMELINE else content
    with working("exporting"):
        written = documents(chosen, source, output)
    for path, document in written.items():
        if path:
            with atomic_write(path) as file:
                file.write(document)
            wrote(path, _USES[chosen])
        else:
            sys.stdout.buffer.write(document)
            sys.stdout.buffer.flush()
