"""Calls of modules, step times and kernels, as the collector measured them, beside what their
source or their shapes alone predict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.frames import text_rows
from perfmodel.base.units import error_pct
from perfmodel.cost.durations import durations, uncalibrated
from perfmodel.cost.gpu.program import shortest_kernel_us
from perfmodel.errors import HardwareError, ModelError, PerfmodelError, UsageError
from perfmodel.hardware import Device, Node, from_driver_name, node, with_settings
from perfmodel.ops.read.module import EAGER, HOW, Call, Program, as_run
from perfmodel.ops.spec import OPS
from perfmodel.prediction.run import predict
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.validate.calibrate.kernel_data import (
    LAUNCHED_US,
    MAX_US,
    devices_of,
    joined,
    read_table,
)
from perfmodel.validate.calibrate.steps import MeasuredStep, predict_step
from perfmodel.validate.evaluate.results import (
    LEFT_OUT,
    SCHEMA,
    Errors,
    compared,
    error_figures,
    error_rows,
)
from perfmodel.workload import op_graph

MODULES_SCHEMA = "perfmodel.evaluation.modules/1"
NEEDED = ("program", "class", "mode", "training", "device", "median_us", "host_us", "device_us")
HOST_KINDS = (NodeKind.HOST, NodeKind.LAUNCH, NodeKind.SYNC, NodeKind.ALLOCATOR)


@dataclass(frozen=True)
class MeasuredCall:
    """A row of the table, in microseconds; `device_us` is None where no GPU was."""

    program: str
    class_name: str
    mode: str
    is_training: bool
    device: str
    call_us: float
    host_us: float
    device_us: float | None
    where: str = ""
    """File and row."""


def read_calls(path: Path) -> list[MeasuredCall]:
    """The table at `path`, as `collect modules` wrote it.

    Raises `UsageError` that names the file and the row where it is none.
    """
    calls = []
    for where, row in text_rows(path, NEEDED, error=UsageError):
        try:
            call_us, host_us = float(row["median_us"]), float(row["host_us"])
            device_us = float(row["device_us"]) if row["device_us"] else None
        except ValueError:
            raise UsageError(f"{where}: a time is no number") from None
        known_us = (call_us, host_us, 1 if device_us is None else device_us)
        if not all(0 < us < MAX_US for us in known_us):
            raise UsageError(f"{where}: a time is not above 0, or above {MAX_US:g} us")
        if not row["device"]:
            raise UsageError(f"{where}: no device")
        if not re.fullmatch(r"[\w.-]+", row["program"]):
            raise UsageError(f"{where}: program {row['program']!r}: expected the name of a file")
        if row["training"] not in ("0", "1"):
            raise UsageError(f"{where}: training {row['training']!r}: 0 or 1")
        if row["mode"] not in HOW:
            raise UsageError(f"{where}: mode {row['mode']!r}: one of {', '.join(HOW)}")
        about = (row["program"], row["class"], row["mode"], row["training"] == "1", row["device"])
        calls.append(MeasuredCall(*about, call_us, host_us, device_us, where))
    if not calls:
        raise UsageError(f"{path}: the table has no rows")
    return calls


def evaluate_modules(
    calls: Sequence[MeasuredCall],
    programs: Path,
    *,
    hardware: str | None = None,
    settings: Sequence[str] = (),
    overheads: str | None = None,
    begin: Begin = silent,
) -> Errors:
    """Predictions of `calls`, whose files are in the folder `programs`, which are executed.

    They are made for `hardware` with `settings` (`KIND.KEY=VALUE`), by default the device that the
    table names in its usual node, and with the host of the profile `overheads`. Raises
    `HardwareError` for a device that the catalogue lacks, `PerfmodelError` where no call is
    predicted.
    """
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    nodes: dict[str, Node] = {}
    for call in begun(calls, begin, lambda call: call.program):
        if call.device not in nodes:
            try:
                target = hardware or from_driver_name(call.device)
            except HardwareError as error:
                raise HardwareError(f"{call.where}: {error}".removeprefix(": ")) from None
            nodes[call.device] = with_settings(node(target), settings)
        try:
            rows.append(_row(call, programs, nodes[call.device], overheads))
        except PerfmodelError as error:
            left_out.append(f"{LEFT_OUT}{error}")
    if not rows:
        reason = left_out[0].removeprefix(LEFT_OUT)
        raise PerfmodelError(f"{programs}: no call of the table can be predicted: {reason}")
    speeds = {each.host.single_thread_ratio for each in nodes.values()}
    speed = speeds.pop() if len(speeds) == 1 else None
    return module_errors(rows, list(dict.fromkeys(left_out)), speed)


def _row(call: MeasuredCall, programs: Path, target: Node, overheads: str | None) -> dict[str, Any]:
    """One call: of all of it, and of its host and its device by themselves, in microseconds."""
    from perfmodel.ops.read.module import graph_of_program  # needs PyTorch

    program = Program(programs / f"{call.program}.py", call.class_name)
    graph = graph_of_program(program, Call(training=call.is_training))
    (result,) = predict(as_run(graph, call.mode), hardware=[target], overheads=overheads).results
    assert result.low_us is not None
    assert result.high_us is not None
    timeline = result.timeline
    is_host = np.isin(timeline.graph.nodes_.kind, HOST_KINDS)
    host_us = float((timeline.end_us - timeline.start_us)[is_host].sum())  # waiting aside
    device_us = float(result.rank.gpu_active_us)
    return {
        "program": call.program,
        "mode": call.mode,
        "is_training": call.is_training,
        "hardware": result.hardware,
        **compared(result.step_us, result.low_us, result.high_us, call.call_us),
        "host_predicted_us": host_us,
        "host_us": call.host_us,
        "host_error_pct": error_pct(host_us, call.host_us),
        "device_predicted_us": device_us,
        "device_us": call.device_us,
        "device_error_pct": error_pct(device_us, call.device_us),
    }


def module_errors(
    rows: list[dict[str, Any]], left_out: list[str], host_speed_ratio: float | None
) -> Errors:
    """The answer of `rows`; `left_out` says why others have no prediction.

    `host_bound` counts eager calls whose measured host takes longer than their device;
    `measured_host_speed_ratio` is the host's `single_thread_ratio` with which the median of their
    hosts is as measured, where all were predicted with one (`host_speed_ratio`).
    """
    import pandas as pd

    frame = pd.DataFrame(rows).astype({"device_us": float, "device_error_pct": float})
    bound = frame[(frame["mode"] == EAGER) & (frame["host_us"] > frame["device_us"])]
    speed = None
    if host_speed_ratio is not None and len(bound):
        speed = host_speed_ratio * float((bound["host_predicted_us"] / bound["host_us"]).median())
    summary = []
    for (mode, is_training), own in frame.groupby(["mode", "is_training"], sort=False):
        about = {"mode": mode, "is_training": bool(is_training), "n": len(own)}
        for whose in ("", "host_", "device_"):
            error_pct = own[f"{whose}error_pct"].dropna()
            known = len(error_pct) > 0
            about[f"{whose}median_pct"] = float(error_pct.abs().median()) if known else None
            if whose != "device_":
                about[f"{whose}bias_pct"] = float(error_pct.median())
        summary.append(about | {"coverage_frac": float(own["within"].mean())})
    more = {
        "summary": summary,
        "host_bound": len(bound),
        "host_speed_ratio": host_speed_ratio,
        "measured_host_speed_ratio": speed,
    }
    return Errors(MODULES_SCHEMA, rows, left_out, more)


STEPS_SCHEMA = "perfmodel.evaluation.steps/1"
COLLECTED = {"implementation__name": "pytorch", "training__loss": "bce"}
"""How the collector trains its DLRM."""


def evaluate_steps(
    steps: Sequence[MeasuredStep],
    machine: Device | Node,
    *,
    overheads: str | None = None,
    blind: bool = False,
    begin: Begin = silent,
) -> Errors:
    """Predictions of `steps` on a CPU, or on a GPU of a node.

    `spread_pct` is the measurement's own: by how much two halves of its rounds differ. `blind`
    leaves what was measured out of the answer. `overheads` times a GPU's host, by default the
    profile that fits it. Raises `UsageError` that names the row which cannot be predicted.
    """
    rows: list[dict[str, Any]] = []
    for step in begun(steps, begin, lambda step: step.name):
        try:
            if isinstance(machine, Node):  # begins on an idle GPU, ends when it is idle again
                ops = op_graph(step.workload.with_(**COLLECTED))
                (result,) = predict(ops, hardware=[machine], overheads=overheads).results
                assert result.low_us is not None
                assert result.high_us is not None
                times = result.step_us, result.low_us, result.high_us
            else:
                times = predict_step(step, machine)
        except PerfmodelError as error:
            raise UsageError(f"{step.where}: {error}") from None
        spread_pct = None if blind or np.isnan(step.halves_frac) else 100 * step.halves_frac
        measured_us = None if blind else step.step_us
        own = compared(*times, measured_us)
        rows.append({"name": step.name} | own | {"spread_pct": spread_pct})
    more = {"device": machine.name, "summary": step_summary(rows)}
    device = machine.device if isinstance(machine, Node) else machine
    return Errors(STEPS_SCHEMA, rows, uncalibrated(device), more)


def step_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Errors of the rows that were measured, the share of their intervals that hold, and the median
    spread of their measurements."""
    names = ("median_pct", "p90_pct", "worst_pct", "bias_pct", "coverage_frac")
    known = [row for row in rows if row["measured_us"] is not None]
    keys = ("predicted_us", "measured_us", "low_us", "high_us")
    ends = np.array([[row[key] for key in keys] for row in known]).T
    figures: dict[str, float] = error_figures(*ends) if known else {}
    spreads = [row["spread_pct"] for row in known if row["spread_pct"] is not None]
    spread_pct = float(np.median(spreads)) if spreads else None
    return {"n": len(known), **{n: figures.get(n) for n in names}, "spread_pct": spread_pct}


MAX_NAMED = 5
"""Unknown ops that an error names."""
KERNEL_FIGURES = ("mape_pct", "gmae_pct", "median_pct", "bias_pct", "coverage_frac", "width_frac")


def evaluate_kernels(paths: Sequence[Path]) -> Errors:
    """Errors on every row of the tables at `paths`.

    Raises `ModelError`, naming the file, for a table or an op that cannot be used, `HardwareError`
    for an unknown device.
    """
    import pandas as pd

    tables = [read_table(Path(path)) for path in paths]
    for table in tables:
        unknown = sorted({op for op in table.frame["op"].unique() if op not in OPS})
        if unknown:
            shown = ", ".join(repr(op[:60]) for op in unknown[:MAX_NAMED])
            more = len(unknown) - MAX_NAMED
            raise ModelError(
                f"{table.path}: unknown ops {shown}{f' and {more} more' if more > 0 else ''}; "
                "`perfmodel kernel` lists those that can be predicted"
            )
    frame = joined(tables)
    known = devices_of(frame["device"])
    if of_cpu := next((name for name, each in known.items() if each.target == "cpu"), None):
        what = "a CPU, whose operators are predicted within programs: `perfmodel evaluate steps`"
        raise ModelError(f"{tables[0].path}: measured on {of_cpu}, {what}")
    host = ["device", LAUNCHED_US] if LAUNCHED_US in frame else ["device"]
    parts = []
    for _, own in frame.groupby(host, sort=False, dropna=False):
        part = known[own["device"].iloc[0]]
        launched_us = own[LAUNCHED_US].iloc[0] if LAUNCHED_US in own else np.nan
        if not np.isnan(launched_us):  # the shortest kernel is what the host's smallest call took
            part = replace(part, kernel_floor_us=shortest_kernel_us(launched_us))
        parts.append(durations(own, part))
    times = pd.concat(parts).rename(columns={"duration_us": "predicted_us"})
    measured = frame[["op", "device", "dtype"]].assign(measured_us=frame["duration_us"])
    points = measured.join(times[["predicted_us", "low_us", "high_us"]])
    rows = error_rows(points, ("device", "op", "dtype"), KERNEL_FIGURES)
    late = sum(len(table.frame) for table in tables) - len(frame)
    said = f"{late:,} rows left out: their launches came late, so that they are host time"
    return Errors(SCHEMA, rows, [said] * bool(late))
