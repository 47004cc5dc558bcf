"""Every op of a trace that took device time: from its shapes alone, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from perfmodel.errors import HardwareError, TraceError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.graph.opgraph import op_graph
from perfmodel.trace import Trace, read
from perfmodel.validate.find import find_jobs
from perfmodel.validate.op_errors import Measured, OpEvaluation, evaluation_of
from perfmodel.validate.published_lookups import read_lookups
from perfmodel.validate.shapes import device_of_rank, shape_times

EVERY = "*"
_ALONE_UP_TO = 0.05
"""Share of its device time that an op may have run beside other streams' kernels."""


@dataclass(frozen=True)
class Choice:
    """Which ops count, and under what."""

    only: str = EVERY
    """A pattern that an operator's name must match."""
    by_op: bool = False
    """Under the operator's name instead of the kernel family."""
    alone: bool = False
    """Only where no other stream ran something at the same time."""


def evaluate_ops(
    traces: list[str],
    lookups: list[Path],
    *,
    choice: Choice = Choice(),
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> OpEvaluation:
    """Errors per op of `traces` (files or folders) and of tables of published `lookups`.

    Raises `TraceError` for a trace or a table that cannot be read.
    """
    found: list[Measured] = []
    warnings: list[str] = []
    for job in find_jobs(traces, max_bytes=max_bytes):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            found += ops_of(trace, job.name, choice)
        except (TraceError, HardwareError) as error:
            warnings.append(f"left out: {job.name}: {error}")
    for path in lookups:
        found += read_lookups(path)
    return evaluation_of(found, warnings)


def ops_of(trace: Trace, source: str, choice: Choice = Choice()) -> Iterator[Measured]:
    """Of all ranks; collectives are left out, and ops that only the lowering's fallback knows.

    Raises `TraceError` where shapes are not recorded, `HardwareError` for an unknown device.
    """
    for rank, links, graph in zip(trace.ranks, trace.links, op_graph(trace), strict=True):
        if not rank.devices:
            continue
        device = device_of_rank(rank)
        times = shape_times(rank, links, graph, device)
        counts = np.array([fnmatchcase(graph.ops[op].name, choice.only) for op in times.op], bool)
        if choice.alone:
            counts &= times.beside_us <= _ALONE_UP_TO * times.measured_us
        for at in np.flatnonzero(counts).tolist():
            yield Measured(
                source,
                device.name,
                graph.ops[times.op[at]].name if choice.by_op else times.family[at],
                float(times.predicted_us[at]),
                float(times.measured_us[at]),
            )
