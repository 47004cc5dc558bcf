"""Published times of embedding kernels, beside what kernel models say of their configurations."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.duration import durations_of
from perfmodel.errors import HardwareError, TraceError
from perfmodel.files import read_bytes
from perfmodel.frames import MAX_TABLE_BYTES
from perfmodel.hardware import Device, device
from perfmodel.ops.rows import Rows
from perfmodel.validate.op_errors import Measured
from perfmodel.workload import load_workload
from perfmodel.workload.tables import lookups

Row = Mapping[str, str]
_KERNEL_TABLE = ("trace", "kernel", "count", "total_us")
_TIMING_TABLE = ("op", "gpu", "batch", "tables", "rows_per_table", "dim", "pooling", "time_us")
_EARLY = "batched_embedding_"
"""Kernels before FBGEMM's, by the beginning of their name."""
_OF_LIN = "v100-sxm2-16gb"
"""Their traces name no GPU; kernels and rates are a V100's."""
_USUAL_BOARD = {"v100": _OF_LIN, "a100": "a100-sxm-40gb", "h100": "h100-sxm"}
"""Where a GPU is named, and not its board."""
_PRESETS = {"default": "lin-dlrm-default", "": "lin-dlrm-mlperf"}
"""What a trace's name has in it, to the configuration that it ran. Source: Lin et al. 2022."""
_REPEATED = "profiler_repeated"
"""Benchmarks call one kernel over and over."""
_LOOKUPS = ("TBE", "batched embedding lookup")
_WAYS = {"fwd": "fwd", "bwd": "bwd", "bwd+sgd": "bwd"}


def read_lookups(path: Path) -> list[Measured]:
    """The rows of a table with a full configuration on a named GPU, each with its prediction.

    Two kinds of CSV: kernel times of traces (`trace kernel count total_us`, of Lin et al.), and
    timings with configurations (`op gpu batch tables rows_per_table dim pooling phase time_us`).
    Raises `TraceError` for anything else.
    """
    try:
        text = read_bytes(path, max_bytes=MAX_TABLE_BYTES).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a CSV table: {error}") from None
    columns = set(rows[0]) if rows else set()
    for needed, of in ((_KERNEL_TABLE, _kernels), (_TIMING_TABLE, _timings)):
        if columns.issuperset(needed):
            try:
                return list(_predicted(path.name, of(rows)))
            except ValueError as error:
                raise TraceError(f"{path}: {error}") from None
    raise TraceError(
        f"{path}: neither {' '.join(_KERNEL_TABLE)} nor {' '.join(_TIMING_TABLE)} among its columns"
    )


Found = tuple[str, Device, dict[str, Any], float]
"""Name, device, record of the measurement table, microseconds."""


def _predicted(source: str, found: Iterable[Found]) -> Iterator[Measured]:
    for name, where, record, measured_us in found:
        predicted = durations_of(Rows.of([record]), where).duration_us
        yield Measured(source, where.name, name, float(predicted[0]), measured_us)


def _kernels(rows: Iterable[Row]) -> Iterator[Found]:
    where = device(_OF_LIN)
    for row in rows:
        if _EARLY not in row["kernel"]:
            continue
        preset = next(name for part, name in _PRESETS.items() if part in row["trace"])
        about = lookups(load_workload(preset).tables, load_workload(preset).batch)
        direction = "fwd" if "forward" in row["kernel"] else "bwd"
        told = {name: float(value) for name, value in _whole(about.to_attributes()).items()}
        record = {"op": "tbe", "direction": direction, "early": 1.0, **told}
        yield f"{preset} {direction}", where, record, float(row["total_us"]) / float(row["count"])


def _whole(attributes: Mapping[str, str]) -> dict[str, str]:
    names = ("tables", "batch", "lookups", "dim", "hash_size", "unique_rows", "longest_bag")
    return {name: attributes[name] for name in names}


def _timings(rows: Iterable[Row]) -> Iterator[Found]:
    for row in rows:
        direction = _WAYS.get(row.get("phase", ""))
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
            "early": float(row.get("impl", "").startswith(_EARLY)),
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
