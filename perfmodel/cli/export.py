"""`perfmodel export` and `report`: a timeline, a trace or a graph for other tools; one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.options import max_bytes
from perfmodel.cli.output import check_target, working, wrote
from perfmodel.cli.prediction_options import DEFAULTS, OF_READING, PredictionOptions
from perfmodel.errors import UsageError
from perfmodel.reporting import written
from perfmodel.reporting.written import CHAKRA, GRAPH, TIMELINE

if TYPE_CHECKING:
    from perfmodel.trace import Trace

_USES = {
    TIMELINE: "the timeline; open it in ui.perfetto.dev or chrome://tracing",
    GRAPH: "the execution graph; open it with networkx.read_graphml, Gephi or yEd",
    CHAKRA: "a linked Chakra trace; a simulator such as ASTRA-sim takes it",
}
_PAGE = "one page; open it in a browser, or send it"


def export(trace: str, output: Path = Path("-"), options: PredictionOptions = DEFAULTS) -> None:
    chosen = written.exported(output)
    check_target(output)
    if chosen != TIMELINE:
        options.refuse_beside(f"a {chosen}: it is for a timeline", OF_READING)
    if options.hardware and len(options.hardware) > 1:
        raise UsageError("export takes one --hardware")
    options.check()
    content: Any = options.content(trace)
    if chosen == TIMELINE:
        content = options.predict(content)
    with working("exporting"):
        files = written.export(content, output)
    for path in files:
        wrote(path, _USES[chosen])


def report(
    trace: str | None = None,
    output: Path = Path("report.html"),
    workload: str | None = None,
    options: PredictionOptions = DEFAULTS,
) -> None:
    written.require_page(output)
    check_target(output)
    if workload and trace:
        raise UsageError("--workload cannot be combined with a trace")
    from perfmodel.reporting.brief import stored_answer
    from perfmodel.reporting.page import answer_html

    content: Any = None
    near: Trace | None = None
    if workload:
        prediction = options.predict(options.configuration(workload))
    elif answer := stored_answer(trace or "", max_bytes(options.max_memory)):
        options.refuse_beside("a stored answer", ("max_memory",))
        wrote(output, _PAGE, answer_html(answer, trace or ""))
        return
    else:
        options.check()
        content = options.content(trace)
        prediction = options.predict(content)
        if options.steps and trace != "-":  # which can be read once
            near = options.read(trace, context=1)
    with working("writing the page"):
        words = options.reading_words()
        page = written.page_of(prediction, content, trace, options.hardware or (), words, near)
        wrote(output, _PAGE, page)
