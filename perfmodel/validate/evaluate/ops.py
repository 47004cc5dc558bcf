"""Errors of device time per op of traces, predicted from shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.errors import HardwareError, TraceError
from perfmodel.trace import Trace, read
from perfmodel.validate.calibrate.kernel_data import DECIMALS, error_figures
from perfmodel.validate.evaluate.jobs import find_jobs
from perfmodel.validate.evaluate.results import LEFT_OUT, Errors
from perfmodel.validate.evaluate.shapes import times_of_ranks

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


def op_evaluation(result: Iterable[MeasuredOp], warnings: Sequence[str] = ()) -> Errors:
    """Errors by source and name, the longest first, and of `all` together; percents of what was
    measured.

    `gmae_pct` is the geometric mean of absolute errors, `mape_pct` their mean, `median_pct` their
    median, `bias_pct` the mean error with its sign, `total_pct` the error of all their times
    together.
    """
    groups: dict[tuple[str, str, str], list[MeasuredOp]] = {}
    for each in result:
        groups.setdefault((each.source, each.device, each.name), []).append(each)
    rows = [_errors(*key, own) for key, own in groups.items()]
    rows.sort(key=lambda row: (row["source"], -row["measured_us"]))
    together = [each for own in groups.values() for each in own]
    whole = _errors("all", "", "all", together) if together else None
    return Errors(SCHEMA, rows, list(warnings), {"all": whole})


def _errors(source: str, device: str, name: str, result: Sequence[MeasuredOp]) -> dict[str, Any]:
    predicted = np.array([each.predicted_us for each in result])
    measured = np.array([each.measured_us for each in result])
    figures = error_figures(predicted, measured) | {"measured_us": float(measured.sum())}
    names = ("gmae_pct", "mape_pct", "median_pct", "bias_pct", "total_pct", "measured_us")
    rounded = {each: round(figures[each], DECIMALS) for each in names}
    return {"source": source, "device": device, "name": name, "n": len(result), **rounded}


def evaluate_ops(
    traces: list[str],
    *,
    only: str = "*",
    by_op: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Errors:
    """Errors per op of `traces` (files or folders); see `ops_of`.

    Raises `TraceError` for a trace that cannot be read.
    """
    result: list[MeasuredOp] = []
    warnings: list[str] = []
    for job in begun(find_jobs(traces, max_bytes=max_bytes), begin, lambda job: job.name):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            result += ops_of(trace, job.name, only=only, by_op=by_op)
        except (TraceError, HardwareError) as error:
            warnings.append(f"{LEFT_OUT}{job.name}: {error}")
    return op_evaluation(result, warnings)


def ops_of(
    trace: Trace, source: str, *, only: str = "*", by_op: bool = False
) -> Iterator[MeasuredOp]:
    """Of all ranks, the operators whose name matches the pattern `only`, by kernel family or by
    name (`by_op`); collectives are left out, and ops that only the lowering's fallback knows.

    Raises `TraceError` where shapes are not recorded, `HardwareError` for an unknown device.
    """
    for where, graph, times in times_of_ranks(trace):
        for at, op in enumerate(times.op.tolist()):
            name = graph.ops[op].name
            if fnmatchcase(name, only):
                us = float(times.predicted_us[at]), float(times.measured_us[at])
                yield MeasuredOp(source, where.name, name if by_op else times.family[at], *us)
