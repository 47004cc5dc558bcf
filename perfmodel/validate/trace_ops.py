"""Every op of a trace that took device time: from its shapes alone, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from perfmodel.errors import HardwareError, TraceError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.graph.opgraph import op_graph
from perfmodel.trace import Trace, read
from perfmodel.validate.find import find_jobs
from perfmodel.validate.op_errors import Measured, OpEvaluation, evaluation_of
from perfmodel.validate.published_lookups import read_lookups
from perfmodel.validate.shapes import device_of_rank, shape_times

EVERY = "*"


def evaluate_ops(
    traces: list[str],
    lookups: list[Path],
    *,
    by_op: bool = False,
    only: str = EVERY,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> OpEvaluation:
    """Errors per op of `traces` (files or folders) and of tables of published `lookups`.

    `by_op` counts by operator instead of by kernel family; `only` is a pattern that operators'
    names must match. Raises `TraceError` for a trace or a table that cannot be read.
    """
    found: list[Measured] = []
    warnings: list[str] = []
    for job in find_jobs(traces, max_bytes=max_bytes):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            found += ops_of(trace, job.name, by_op=by_op, only=only)
        except (TraceError, HardwareError) as error:
            warnings.append(f"left out: {job.name}: {error}")
    for path in lookups:
        found += read_lookups(path)
    return evaluation_of(found, warnings)


def ops_of(
    trace: Trace, source: str, *, by_op: bool = False, only: str = EVERY
) -> Iterator[Measured]:
    """Of all ranks; collectives are left out, and ops that only the lowering's fallback knows.

    Raises `TraceError` where shapes are not recorded, `HardwareError` for an unknown device.
    """
    for rank, links, graph in zip(trace.ranks, trace.links, op_graph(trace), strict=True):
        if not rank.devices:
            continue
        device = device_of_rank(rank)
        times = shape_times(rank, links, graph, device)
        columns = (times.op.tolist(), times.family, times.predicted_us, times.measured_us)
        for op, family, predicted_us, measured_us in zip(*columns, strict=True):
            name = graph.ops[op].name
            if fnmatchcase(name, only):
                counted = name if by_op else family
                yield Measured(
                    source, device.name, counted, float(predicted_us), float(measured_us)
                )
