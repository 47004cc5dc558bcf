"""Errors of device time per op, predicted from shapes: ops of traces, published lookups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.frames import csv_rows
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, TraceError
from perfmodel.hardware import Device, device
from perfmodel.ops.rows import Rows
from perfmodel.trace import Trace, read
from perfmodel.validate.calibrate.kernel_data import DECIMALS, error_figures
from perfmodel.validate.evaluate.jobs import find_jobs
from perfmodel.validate.evaluate.results import LEFT_OUT, Errors
from perfmodel.validate.evaluate.shapes import times_of_ranks
from perfmodel.workload import load_workload
from perfmodel.workload.tables import lookups

SCHEMA = "perfmodel.evaluation.ops/1"


@dataclass(frozen=True)
class MeasuredOp:
    """Device time of one op, microseconds."""

    source: str
    """The trace, or the table."""
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


TableRow = Mapping[str, str]
_KERNEL_TABLE = ("trace", "kernel", "count", "total_us")
_TIMING_TABLE = ("op", "gpu", "batch", "tables", "rows_per_table", "dim", "pooling", "time_us")
_BEFORE_FBGEMM = "batched_embedding_"
"""Kernels before FBGEMM's, by the beginning of their name."""
_LIN_DEVICE = "v100-sxm2-16gb"
"""Their traces name no GPU; kernels and rates are a V100's."""
_USUAL_BOARD = {"v100": _LIN_DEVICE, "a100": "a100-sxm-40gb", "h100": "h100-sxm"}
"""Where a GPU is named, and not its board."""
_PRESETS = {"default": "lin-dlrm-default", "": "lin-dlrm-mlperf"}
"""What a trace's name has in it, to the configuration that it ran. Source: Lin et al. 2022."""
_REPEATED = "profiler_repeated"
"""Benchmarks call one kernel over and over."""
_LOOKUPS = ("TBE", "batched embedding lookup")
_LOOKUP_DIMS = ("tables", "batch", "lookups", "dim", "hash_size", "unique_rows", "longest_bag")
_DIRECTIONS = {"fwd": "fwd", "bwd": "bwd", "bwd+sgd": "bwd"}


def read_lookups(path: Path) -> list[MeasuredOp]:
    """The rows of a table with a full configuration on a named GPU, each with its prediction.

    Two kinds of CSV: kernel times of traces (`trace kernel count total_us`, of Lin et al.), and
    timings with configurations (`op gpu batch tables rows_per_table dim pooling phase time_us`).
    Raises `TraceError` for anything else.
    """
    rows = [row for _, row in csv_rows(path, _TIMING_TABLE, _KERNEL_TABLE, error=TraceError)]
    is_of_kernels = bool(rows) and rows[0].keys() >= set(_KERNEL_TABLE)
    result = []
    try:
        for name, where, record, us in (_kernel_times if is_of_kernels else _lookup_timings)(rows):
            predicted = durations_of(Rows.of([record]), where).duration_us
            result.append(MeasuredOp(path.name, where.name, name, float(predicted[0]), us))
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    return result


PublishedTime = tuple[str, Device, dict[str, Any], float]
"""Name, device, record of the measurement table, microseconds."""


def _kernel_times(rows: Iterable[TableRow]) -> Iterator[PublishedTime]:
    where = device(_LIN_DEVICE)
    for row in rows:
        if _BEFORE_FBGEMM not in row["kernel"]:
            continue
        preset = next(name for part, name in _PRESETS.items() if part in row["trace"])
        workload = load_workload(preset)
        attributes = lookups(workload.tables, workload.batch).to_attributes()
        direction = "fwd" if "forward" in row["kernel"] else "bwd"
        dims = {name: float(attributes[name]) for name in _LOOKUP_DIMS}
        record = {"op": "tbe", "direction": direction, "early": 1.0, **dims}
        yield f"{preset} {direction}", where, record, float(row["total_us"]) / float(row["count"])


def _lookup_timings(rows: Iterable[TableRow]) -> Iterator[PublishedTime]:
    for row in rows:
        direction = _DIRECTIONS.get(row.get("phase", ""))
        if row["op"] not in _LOOKUPS or row.get("full_config", "yes") != "yes" or not direction:
            continue
        name = row["gpu"].partition("(")[0].strip().lower()
        try:
            where = device(_USUAL_BOARD.get(name, name))
        except HardwareError:
            continue
        if where.target == "cpu":
            continue
        tables, batch, pooling = (float(row[name]) for name in ("tables", "batch", "pooling"))
        record = {
            "op": "tbe",
            "direction": direction,
            "early": float(row.get("impl", "").startswith(_BEFORE_FBGEMM)),
            "dtype": row.get("dtype") or "fp32",
            "timing": _REPEATED,
            "tables": tables,
            "batch": batch,
            "lookups": tables * batch * pooling,
            "dim": float(row["dim"]),
            "hash_size": float(row["rows_per_table"]),
            "longest_bag": pooling,
        }
        yield f"{row['op']} {direction}", where, record, float(row["time_us"])


_ALONE_UP_TO = 0.05
"""Share of its device time that an op may have overlapped with other streams' kernels."""


@dataclass(frozen=True)
class OpSelection:
    """Which ops count, and under what."""

    only: str = "*"
    """A pattern that an operator's name must match."""
    by_op: bool = False
    """Under the operator's name instead of the kernel family."""
    alone: bool = False
    """Only where no other stream ran something at the same time."""


def evaluate_ops(
    traces: list[str],
    lookups: list[Path],
    *,
    choice: OpSelection = OpSelection(),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Errors:
    """Errors per op of `traces` (files or folders) and of tables of published `lookups`.

    Raises `TraceError` for a trace or a table that cannot be read.
    """
    result: list[MeasuredOp] = []
    warnings: list[str] = []
    for job in begun(find_jobs(traces, max_bytes=max_bytes), begin, lambda job: job.name):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            result += ops_of(trace, job.name, choice)
        except (TraceError, HardwareError) as error:
            warnings.append(f"{LEFT_OUT}{job.name}: {error}")
    for path in lookups:
        result += read_lookups(path)
    return op_evaluation(result, warnings)


def ops_of(trace: Trace, source: str, choice: OpSelection = OpSelection()) -> Iterator[MeasuredOp]:
    """Of all ranks; collectives are left out, and ops that only the lowering's fallback knows.

    Raises `TraceError` where shapes are not recorded, `HardwareError` for an unknown device.
    """
    for where, graph, times in times_of_ranks(trace):
        counts = np.array([fnmatchcase(graph.ops[op].name, choice.only) for op in times.op], bool)
        if choice.alone:
            counts &= times.beside_us <= _ALONE_UP_TO * times.measured_us
        for at in np.flatnonzero(counts).tolist():
            name = graph.ops[times.op[at]].name if choice.by_op else times.family[at]
            us = float(times.predicted_us[at]), float(times.measured_us[at])
            yield MeasuredOp(source, where.name, name, *us)
