"""Errors of device time per op of traces, predicted from shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from perfmodel.calibrate.kernel_data import GMAE_OFFSET, mape_pct
from perfmodel.errors import HardwareError, TraceError
from perfmodel.evaluation.jobs import find_jobs
from perfmodel.evaluation.results import DECIMALS, LEFT_OUT, Tabular
from perfmodel.evaluation.shapes import device_of_rank, shape_times
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.ops.read import op_graph
from perfmodel.progress import Begin, begun, silent
from perfmodel.trace import Trace, read

SCHEMA = "perfmodel.evaluation.ops/1"


@dataclass(frozen=True)
class MeasuredOp:
    """Device time of one op, microseconds."""

    source: str
    device: str
    name: str
    """What its errors are counted under."""
    predicted_us: float
    measured_us: float


@dataclass(frozen=True)
class OpErrors:
    """Errors of `n` ops of one name in one source; percents of what was measured.

    `gmae_pct` is the geometric mean of absolute errors, `mape_pct` their mean, `median_pct` their
    median, `bias_pct` the mean error with its sign, `total_pct` the error of all their times
    together.
    """

    source: str
    device: str
    name: str
    n: int
    gmae_pct: float
    mape_pct: float
    median_pct: float
    bias_pct: float
    total_pct: float
    measured_us: float


@dataclass(frozen=True)
class OpEvaluation(Tabular):
    """Errors by source and name."""

    rows: tuple[OpErrors, ...]
    all_rows: OpErrors | None
    """Of all ops of all sources together."""
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rows": [asdict(row) for row in self.rows],
            "all": asdict(self.all_rows) if self.all_rows else None,
            "warnings": self.warnings,
        }


def op_evaluation(result: Iterable[MeasuredOp], warnings: Sequence[str] = ()) -> OpEvaluation:
    """The errors of `result`, by source and name, the longest first."""
    groups: dict[tuple[str, str, str], list[MeasuredOp]] = {}
    for each in result:
        groups.setdefault((each.source, each.device, each.name), []).append(each)
    rows = sorted(
        (_errors(*key, own) for key, own in groups.items()),
        key=lambda row: (row.source, -row.measured_us),
    )
    together = [each for own in groups.values() for each in own]
    whole = _errors("all", "", "all", together) if together else None
    return OpEvaluation(tuple(rows), whole, list(warnings))


def _errors(source: str, device: str, name: str, result: Sequence[MeasuredOp]) -> OpErrors:
    predicted = np.array([each.predicted_us for each in result])
    measured = np.array([each.measured_us for each in result])
    error = predicted / measured - 1.0
    size = np.abs(error)
    figures = (
        100.0 * np.exp(np.log(size + GMAE_OFFSET).mean()),
        mape_pct(measured, predicted),
        100.0 * np.median(size),
        100.0 * error.mean(),
        100.0 * (predicted.sum() / measured.sum() - 1.0),
        measured.sum(),
    )
    rounded = (round(float(figure), DECIMALS) for figure in figures)
    return OpErrors(source, device, name, len(result), *rounded)


ANY_NAME = "*"
_ALONE_UP_TO = 0.05
"""Share of its device time that an op may have overlapped with other streams' kernels."""


@dataclass(frozen=True)
class OpSelection:
    """Which ops count, and under what."""

    only: str = ANY_NAME
    """A pattern that an operator's name must match."""
    by_op: bool = False
    """Under the operator's name instead of the kernel family."""
    alone: bool = False
    """Only where no other stream ran something at the same time."""


def evaluate_ops(
    traces: list[str],
    *,
    choice: OpSelection = OpSelection(),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> OpEvaluation:
    """Errors per op of `traces` (files or folders); `TraceError` for one that cannot be read."""
    result: list[MeasuredOp] = []
    warnings: list[str] = []
    for job in begun(find_jobs(traces, max_bytes=max_bytes), begin, lambda job: job.name):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            result += ops_of(trace, job.name, choice)
        except (TraceError, HardwareError) as error:
            warnings.append(f"{LEFT_OUT}{job.name}: {error}")
    return op_evaluation(result, warnings)


def ops_of(trace: Trace, source: str, choice: OpSelection = OpSelection()) -> Iterator[MeasuredOp]:
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
            yield MeasuredOp(
                source,
                device.name,
                graph.ops[times.op[at]].name if choice.by_op else times.family[at],
                float(times.predicted_us[at]),
                float(times.measured_us[at]),
            )
