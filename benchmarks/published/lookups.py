"""Published times of embedding kernels beside what their shapes alone say: errors by name.

    python -m benchmarks.published.lookups device_kernels_by_op_instance.csv embedding_kernels.csv

Two kinds of CSV: kernel times of traces (`trace kernel count total_us`, of Lin et al.), and timings
with configurations (`op gpu batch tables rows_per_table dim pooling phase time_us`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.published.ops import op_errors
from perfmodel.base.frames import text_rows
from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, TraceError
from perfmodel.hardware import Device, device
from perfmodel.ops.rows import Rows
from perfmodel.workload import load_workload
from perfmodel.workload.tables import lookups

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


def read_lookups(path: Path) -> pd.DataFrame:
    """The rows of a table with a full configuration on a named GPU, each with its prediction:
    `source device name predicted_us measured_us`.

    Raises `TraceError` for anything else.
    """
    rows = [row for _, row in text_rows(path, _TIMING_TABLE, _KERNEL_TABLE, error=TraceError)]
    is_of_kernels = bool(rows) and rows[0].keys() >= set(_KERNEL_TABLE)
    result = []
    try:
        for name, where, record, us in (_kernel_times if is_of_kernels else _lookup_timings)(rows):
            predicted = durations_of(Rows.of([record]), where).duration_us
            result.append((path.name, where.name, name, float(predicted[0]), us))
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    columns = ["source", "device", "name", "predicted_us", "measured_us"]
    return pd.DataFrame(result, columns=columns)


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


if __name__ == "__main__":
    found = pd.concat([read_lookups(Path(path)) for path in sys.argv[1:]])
    print(op_errors(found).to_frame().to_string(index=False))
