"""The evaluation, in one page: jobs in, errors out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfmodel.attribution.steps import by_rank, steady_steps
from perfmodel.errors import PerfmodelError, TraceError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.prediction import predict
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace, read
from perfmodel.validate.device import DeviceWork, family_rows
from perfmodel.validate.find import Job
from perfmodel.validate.host import overhead_rows
from perfmodel.validate.shapes import model_rows, modelled, shape_rows, shapes_of
from perfmodel.validate.steps import coverage_frac, held_out_steps, hold_out, step_rows
from perfmodel.validate.tables import TableJob, table_rows
from perfmodel.validate.types import LEFT_OUT, Evaluation, Row, TraceFacts


def evaluate_jobs(
    jobs: Sequence[Job],
    tables: Sequence[TableJob] = (),
    *,
    strict: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Callable[[str, int], object] = lambda name, position: None,
) -> Evaluation:
    """The errors of every job, then of every table; `begin` is told name and position of each job.

    A job that cannot be used is an error where it was asked for, or with `strict`; one that was
    come upon in a folder is left out with a warning. Raises `PerfmodelError` where none is left.
    """
    rows: list[Row] = []
    facts: list[TraceFacts] = []
    warnings: list[str] = []
    for position, job in enumerate(jobs):
        begin(job.name, position)
        try:
            trace = read(job.path, strict=strict, max_bytes=max_bytes)
            found = evaluate_trace(trace, job.name)
        except PerfmodelError as error:
            if job.asked or strict:
                raise
            warnings.append(f"{LEFT_OUT}{error}")
            continue
        rows += found.rows
        facts += found.traces
        warnings += found.warnings
    if not facts:
        why = warnings[0].removeprefix(LEFT_OUT) if warnings else "no trace was given"
        raise TraceError(f"nothing to evaluate: {why}")
    for table in tables:
        rows += table_rows(table)
    return Evaluation(rows, facts, warnings)


def evaluate_trace(trace: Trace, name: str | None = None) -> Evaluation:
    """The errors of one trace. Raises `TraceError` where it has no times.

    Warm-up and outliers neither teach nor count. With one step there is only its replay.
    """
    name = trace.source if name is None else name
    found = predict(trace)
    timeline = found.results[0].timeline
    graph = timeline.graph
    steady = steady_steps(measured(graph))
    held = held_out_steps(steady)
    work = DeviceWork.of(graph)
    left = hold_out(graph, work, steady, held)
    shapes, model = shapes_of(trace), modelled(trace)
    rows = [
        *step_rows(name, timeline, left, steady, held),
        *overhead_rows(name, trace, steady, held),
        *family_rows(name, work, steady, held),
        *shape_rows(name, shapes),
        *model_rows(name, model),
    ]
    true_us = by_rank(graph, measured(graph).step_us)[:, held]
    ranks = found.results[0].ranks
    host = [rank.steps[step].measured_host_frac for rank in ranks for step in held]
    unexplained = [rank.steps[step].unexplained.frac for rank in ranks for step in held]
    facts = TraceFacts(
        trace=name,
        device=trace.device,
        ranks=len(trace.ranks),
        steps=len(held),
        step_us=round(float(np.median(true_us)), 4),
        measured_host_frac=round(float(np.median(host)), 4),
        unexplained_frac=round(max(unexplained), 4),
        interval_coverage_frac=coverage_frac(timeline, steady, held),
        modelled_frac=None if model is None else model.coverage["modelled_frac"],
    )
    said = [f"{name}: {line}" if line in found.cautions else line for line in found.warnings]
    return Evaluation(rows, [facts], said)
