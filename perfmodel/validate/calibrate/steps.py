"""Tables of the collector's DLRM step times, and such steps on a CPU by their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.base.frames import read_frame
from perfmodel.cost.cpu.parameters import reference_cpu, section_of, spread_of
from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.lowering.rules.cpu import cpu_steps, rows_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.streaming import HOST, STEP
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.load import workload_from_document

MAX_BYTES = 100_000_000
MAX_THREADS = 4096
MAX_US = 1e12
MAX_SPREAD = 100.0
STEP_COLUMNS = (
    *("name", "ranks", "threads_per_rank", "rows_per_table", "dim", "pooling", "batch_per_rank"),
    *("zipf_alpha", "bottom_mlp", "top_mlp", "p10_us"),
)


@dataclass(frozen=True)
class MeasuredStep:
    """One configuration: its workload and threads, and the step time of one rank.

    `halves_frac` is by how much the robust times of two halves of the rounds differ: the
    measurement's own spread; NaN where it is unknown.
    """

    name: str
    workload: Workload
    threads: int
    step_us: float
    halves_frac: float
    device: str = ""
    where: str = ""
    """File and row."""


def read_steps(path: Path) -> list[MeasuredStep]:
    """The configurations of the CSV at `path`; `UsageError` names file and row."""
    frame = read_frame(path, max_bytes=MAX_BYTES, error=UsageError)
    if missing := ", ".join(sorted(set(STEP_COLUMNS) - set(frame.columns))):
        raise UsageError(f"{path}: is not a table of step times: it has no column {missing}")
    steps = []
    for number, record in enumerate(frame.to_dict("records"), start=1):
        of_dlrm = [record[name] for name in ("rows_per_table", "dim", "pooling")]
        if all(value != value for value in of_dlrm):  # a step of another model
            continue
        try:
            steps.append(_step(record, f"{path}: row {number}"))
        except (ValueError, TypeError, OverflowError) as error:
            text = str(error)[:200]
            raise UsageError(f"{path}: row {number}: is not a configuration: {text}") from None
    if not steps:
        raise UsageError(f"{path}: no row is a DLRM configuration with a step time")
    return steps


def _step(record: Mapping[str, Any], where: str) -> MeasuredStep:
    if float(record["ranks"]) != 1:
        raise ValueError(f"ranks is {record['ranks']}; steps of one rank are predicted here")
    widths: list[list[int]] = []
    for key in ("bottom_mlp", "top_mlp"):
        try:
            widths.append([int(width) for width in str(record[key]).split("-")])
        except ValueError:
            text = f"{key} is {record[key]}; expected widths as in 64-256-64"
            raise ValueError(text) from None
    bottom, top = widths
    about = {key: float(record[key]) for key in ("dim", "pooling")}
    rows, name = record["rows_per_table"], record["name"]
    if rows != rows:
        raise ValueError("rows_per_table is missing")
    if not isinstance(rows, str):  # a column of numbers alone
        rows = f"{rows:.0f}" if rows == int(rows) else str(rows)
    tables = []
    for text in rows.split():  # `8x1000` is eight times 1000
        count, times, each = text.rpartition("x")
        try:
            sizes = {"count": int(count) if times else 1, "rows": int(each)}
        except ValueError:
            text = f"rows_per_table: {text}: expected rows, or 8x1000"
            raise ValueError(text) from None
        tables.append({**about, "alpha": float(record["zipf_alpha"]), **sizes})
    document = {
        "batch": float(record["batch_per_rank"]),
        "model": {"dense_features": bottom[0], "bottom_mlp": bottom[1:], "top_mlp": top},
        "tables": tables,
    }
    step_us, halves_frac = float(record["p10_us"]), float(record.get("halves_frac", math.nan))
    if not 0 < step_us < MAX_US:
        raise ValueError(f"p10_us is {record['p10_us']}; expected a time above 0")
    if not (math.isnan(halves_frac) or 0 <= halves_frac <= MAX_SPREAD):
        raise ValueError(f"halves_frac is {halves_frac}; expected a share from 0 to {MAX_SPREAD:g}")
    threads = float(record["threads_per_rank"])
    if not 1 <= threads <= MAX_THREADS or int(threads) != threads:
        text = f"threads_per_rank is {threads:g}; expected a whole number from 1 to {MAX_THREADS}"
        raise ValueError(text)
    if not isinstance(name, str):  # a number, or none
        name = "" if name != name else str(name)
    return MeasuredStep(
        name=name,
        workload=workload_from_document(document, name, where),
        threads=int(threads),
        step_us=step_us,
        halves_frac=halves_frac,
        device=str(record.get("device", "")),
        where=where,
    )


def predict_step(step: MeasuredStep, device: Device) -> tuple[float, float, float]:
    """The sum of what its operators take on as many cores as it has threads, and its 90 % interval,
    microseconds."""
    total = float(
        durations_of(step_rows(step), with_threads(device, step.threads)).duration_us.sum()
    )
    section = section_of(HOST, STEP)
    own = device.calibration.get(section, {}).get("spread_frac")  # none while steps are fitted
    known = reference_cpu().calibration[section]["spread_frac"] if own is None else own
    spread = spread_of(known, calibrated=own is not None)
    return total, total / spread, total * spread


@lru_cache(maxsize=1024)  # steps are predicted as one half, then all of them are fitted
def step_rows(step: MeasuredStep) -> Rows:
    (pieces,) = cpu_steps(op_graph(step.workload, target="cpu"))
    return rows_of(pieces)


def with_threads(device: Device, threads: int) -> Device:
    """`device` as so many of its cores see it."""
    if threads >= device.sm_count:
        return device
    share = threads / device.sm_count
    return replace(
        device,
        sm_count=threads,
        l2_bytes=round(device.l2_bytes * share),
        fp32_tflop_per_s=device.fp32_tflop_per_s * share,
    )
