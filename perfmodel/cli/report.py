"""`perfmodel report`: one self-contained page of a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.output import check_target, quiet_figures, working, wrote
from perfmodel.cli.prediction_options import DEFAULTS, PredictionOptions
from perfmodel.errors import UsageError
from perfmodel.reporting.written import require_page

if TYPE_CHECKING:
    from perfmodel.prediction.gains import Gain


def report(
    trace: str | None = None,
    output: Path = Path("report.html"),
    workload: str | None = None,
    options: PredictionOptions = DEFAULTS,
) -> None:
    """One page of a prediction, for any browser."""
    require_page(output)
    check_target(output)
    if workload and trace:
        raise UsageError("--workload cannot be combined with a trace")
    from perfmodel.hardware import load
    from perfmodel.reporting.page import page_html
    from perfmodel.reporting.written import gains_of
    from perfmodel.trace import Trace

    help_most: list[list[Gain]] = []
    recorded: Trace | None = None
    if workload:
        options.refuse_beside_workload()
        from perfmodel.cli.predict import configuration_prediction

        prediction, machines = configuration_prediction(workload, options)
    else:
        options.check()
        machines = [load(each) if isinstance(each, str) else each for each in options.targets()]
        content = options.content(trace)
        recorded = content if isinstance(content, Trace) else None
        reading, settings = options.reading_words(), options.settings or ()
        prediction = options.predict(content)
        names = options.hardware or ()
        with working("predicting"):
            help_most = gains_of(prediction, trace, names, reading=reading, settings=settings)
    quiet_figures()
    with working("writing the page"):
        page = page_html(prediction, machines, help_most, recorded)
        wrote(output, "one page; open it in a browser, or send it", page)
