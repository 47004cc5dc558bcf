"""Traces evaluated: the jobs behind paths, and the errors of each in one page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.errors import PerfmodelError, TraceError, UsageError
from perfmodel.evaluation.held_out import (
    coverage_frac,
    device_work,
    family_rows,
    held_out_step_us,
    held_out_steps,
    overhead_rows,
    step_rows,
)
from perfmodel.evaluation.kernels import TableJob, table_rows
from perfmodel.evaluation.results import LEFT_OUT, Evaluation, Row, TraceFacts
from perfmodel.evaluation.shapes import model_rows, predicted_in_model_mode, shape_rows, shapes_of
from perfmodel.files import DEFAULT_MAX_BYTES, read_chunks
from perfmodel.prediction import predict
from perfmodel.progress import Begin, begun, silent
from perfmodel.timeline.schedule import measured
from perfmodel.timeline.steps import by_rank_and_step, steady_steps
from perfmodel.trace import Trace, read
from perfmodel.trace.formats import file_suffixes
from perfmodel.trace.read import rank_in_name

DEMO = "bundled demo"
_DEMO_FILE = "dlrm_cpu_kineto.json.gz"
_ARCHIVES = (".tar.gz", ".tgz")
_KEY = b'"traceEvents"'
_UNSAID = -1
"""A rank or a world size that a file does not say."""
_STATED = re.compile(
    rb'"distributedInfo"\s*:\s*\{(?=[^{}]*"world_size"\s*:\s*(?!1\D)(\d+))[^{}]*"rank"\s*:\s*(\d+)'
)


@dataclass(frozen=True)
class Job:
    """One training or inference job: a file, or a folder with a file per rank."""

    name: str
    """The same wherever the folder is: its own name and the path below it."""
    path: Path
    asked: bool = True
    """Named by the user, and not come upon in a folder."""


def demo_job() -> Job:
    """The trace that comes with the package."""
    return Job(DEMO, Path(__file__).parents[1] / "demo" / _DEMO_FILE)


def find_jobs(paths: Iterable[str | Path], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Job]:
    """The jobs of files and folders, in order of name.

    A folder whose traces say different ranks of one job is that job; otherwise each Kineto file
    and each archive is one. Other files are passed over. Raises `TraceError` where a folder
    holds no trace, and `UsageError` where two jobs would have one name.
    """
    result: dict[str, Job] = {}
    for path in map(Path, paths):
        for job in _jobs(path, max_bytes):
            other = result.setdefault(job.name, job)
            if other != job:
                raise UsageError(f"{job.path} and {other.path} would both be {job.name!r}")
    return [result[name] for name in sorted(result)]


def _jobs(path: Path, max_bytes: int) -> list[Job]:
    root = Path(os.path.abspath(path))
    if not root.is_dir():
        return [Job(root.name, path)]

    def refuse(error: OSError) -> None:
        raise TraceError(f"{error.filename}: cannot be read: {error.strerror or error}")

    jobs: list[Job] = []
    for folder, folders, files in os.walk(root, onerror=refuse):
        folders.sort()
        below = Path(folder).relative_to(root)
        names = sorted(file for file in files if file.lower().endswith(file_suffixes()))
        jobs += _of_folder(path / below, (Path(root.name) / below).as_posix(), names, max_bytes)
    if not jobs:
        raise TraceError(f"{path}: no Kineto trace in this folder or below it")
    return jobs


def _of_folder(folder: Path, name: str, files: list[str], max_bytes: int) -> list[Job]:
    archives = [file for file in files if file.lower().endswith(_ARCHIVES)]
    places = {file: _rank(folder / file, max_bytes) for file in files if file not in archives}
    known = [place for place in places.values() if place is not None]
    ranks, sizes = {rank for rank, _ in known}, {size for _, size in known}
    of_one_job = _UNSAID not in ranks and len(ranks) == len(known) and len(sizes) == 1
    if len(known) > 1 and of_one_job and not archives:
        return [Job(name, folder, asked=False)]
    traces = sorted([*archives, *(file for file, place in places.items() if place is not None)])
    return [Job(f"{name}/{file}", folder / file, asked=False) for file in traces]


def _rank(path: Path, max_bytes: int) -> tuple[int, int] | None:
    """Rank and world size that a Kineto file says, or its name the rank; None: no Kineto file.

    A file that cannot be read counts: reading it will say why.
    """
    head = bytearray()
    try:
        for chunk in read_chunks(path, max_bytes=max_bytes):
            unsearched = max(0, len(head) - len(_KEY))
            head += chunk
            at = head.find(_KEY, unsearched)
            if at >= 0:
                stated = _STATED.search(head, 0, at)
                if stated:
                    return int(stated.group(2)), int(stated.group(1))
                rank = rank_in_name(path.name)
                return _UNSAID if rank is None else rank, _UNSAID
    except PerfmodelError:
        return _UNSAID, _UNSAID
    return None


def evaluate_jobs(
    jobs: Sequence[Job],
    tables: Sequence[TableJob] = (),
    *,
    strict: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
    begin: Begin = silent,
) -> Evaluation:
    """The errors of every job, then of every table; `begin` gets the name of each.

    A job that cannot be used is an error where it was asked for, or with `strict`; one that was
    come upon in a folder is left out with a warning. Raises `PerfmodelError` where none is left.
    """
    rows: list[Row] = []
    facts: list[TraceFacts] = []
    warnings: list[str] = []
    for job in begun(jobs, begin, lambda job: job.name):
        try:
            trace = read(job.path, strict=strict, max_bytes=max_bytes, steps_by=steps_by)
            result = evaluate_trace(trace, job.name)
        except PerfmodelError as error:
            if job.asked or strict:
                raise
            warnings.append(f"{LEFT_OUT}{error}")
            continue
        rows += result.rows
        facts += result.traces
        warnings += result.warnings
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
    result = predict(trace)
    timeline = result.results[0].timeline
    graph = timeline.graph
    steady = steady_steps(measured(graph))
    held = held_out_steps(steady)
    work = device_work(graph)
    left = held_out_step_us(graph, work, steady, held)
    shapes, model = shapes_of(trace), predicted_in_model_mode(trace)
    rows = [
        *step_rows(name, timeline, left, steady, held),
        *overhead_rows(name, trace, steady, held),
        *family_rows(name, work, steady, held),
        *shape_rows(name, shapes),
        *model_rows(name, model),
    ]
    true_us = by_rank_and_step(graph, measured(graph).step_us)[:, held]
    ranks = result.results[0].ranks
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
    said = [f"{name}: {line}" if line in result.cautions else line for line in result.warnings]
    return Evaluation(rows, [facts], said)
