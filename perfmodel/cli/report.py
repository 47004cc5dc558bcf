"""`perfmodel report`: one self-contained page of a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    HardwareOption,
    MaxMemoryOption,
    NodesOption,
    StrictOption,
    max_bytes,
)
from perfmodel.cli.output import check_writable, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.hardware import Part
    from perfmodel.prediction import Prediction

SUFFIXES = (".html", ".htm")


def report(
    trace: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="TRACE", help="A trace; without it, the bundled demo."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write (.html).")
    ] = Path("report.html"),
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME|FILE", help="A model configuration instead of a trace."),
    ] = None,
    batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Samples per step of --workload, of all ranks together."),
    ] = None,
    hardware: HardwareOption = None,
    nodes: NodesOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """One page of a prediction, for any browser.

    It holds figures, the timeline, tables and sources.

    \b
    Examples:
      perfmodel report                                      the bundled demo, to report.html
      perfmodel report trace.json.gz -o page.html
      perfmodel report trace.json.gz --hardware h100-sxm --hardware mi300x -o page.html
      perfmodel report --workload dlrm-dcnv2 --hardware dgx-h100 -o page.html
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{output}: a page is written as .html")
    check_writable(output, trace)
    for each in (workload, *(hardware or ())):
        check_writable(output, each)
    if workload and trace:
        raise UsageError("--workload does not go with a trace")
    if workload and not hardware:
        raise UsageError(f"--workload {workload}: say where it runs: --hardware dgx-h100")
    if batch and not workload:
        raise UsageError("--batch is for --workload")
    from perfmodel.files import write_text
    from perfmodel.report.page import page_html

    machines = _machines(hardware or ())
    with working("predicting"):
        if workload:
            from perfmodel.prediction import predict_workload

            found = predict_workload(workload, hardware=machines, batch=batch, nodes=nodes)
        else:
            found = _of_trace(trace, hardware or (), nodes, strict, max_bytes(max_memory))
    with working("writing the page"):
        write_text(output, page_html(found, machines))


def _machines(names: tuple[str, ...] | list[str]) -> list[Part]:
    from perfmodel.hardware import load

    return [load(name) for name in names]


def _of_trace(
    trace: str | None,
    hardware: tuple[str, ...] | list[str],
    nodes: int | None,
    strict: bool,
    limit: int,
) -> Prediction:
    from perfmodel.prediction import predict
    from perfmodel.trace import read

    if trace is None:
        from perfmodel.cli.demo import read_demo

        content, _ = read_demo()
    else:
        content = read(trace, strict=strict, max_bytes=limit)
    return predict(content, hardware=list(hardware), nodes=nodes)
