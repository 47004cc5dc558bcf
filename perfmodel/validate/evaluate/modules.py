"""Calls of modules as `collect modules` measured them, beside what their source alone predicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.frames import csv_rows
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.errors import HardwareError, PerfmodelError, UsageError
from perfmodel.hardware import Node, from_driver_name, node, with_settings
from perfmodel.ops.read.program import EAGER, HOW, Call, Program, as_run
from perfmodel.prediction.run import predict
from perfmodel.prediction.types import Result
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.validate.evaluate.results import LEFT_OUT, Compared, Tabular

SCHEMA = "perfmodel.evaluation.modules/1"
NEEDED = ("program", "class", "mode", "training", "device", "median_us", "host_us", "device_us")
MAX_US = 1e12
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
    """File and line."""


@dataclass(frozen=True, kw_only=True)
class ModuleError(Compared):
    """One call: of all of it, and of its host and its device by themselves, in microseconds."""

    program: str
    mode: str
    is_training: bool
    hardware: str
    measured_us: float
    host_predicted_us: float
    host_us: float
    device_predicted_us: float
    device_us: float | None

    @property
    def host_error_pct(self) -> float:
        """Of the host's time in the call."""
        return 100 * (self.host_predicted_us / self.host_us - 1)

    @property
    def device_error_pct(self) -> float | None:
        """Of the device's time, where it was measured."""
        if self.device_us is None:
            return None
        return 100 * (self.device_predicted_us / self.device_us - 1)

    def to_dict(self) -> dict[str, Any]:
        keys = ("error_pct", "within", "host_error_pct", "device_error_pct")
        return asdict(self) | {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class ModuleErrors(Tabular):
    """All calls of a table; `left_out` says why a row has no prediction, `host_speed_ratio` what
    the host's `single_thread_ratio` was taken to be, where it was one for all."""

    rows: tuple[ModuleError, ...]
    left_out: tuple[str, ...] = ()
    host_speed_ratio: float | None = None

    @property
    def host_bound(self) -> list[ModuleError]:
        """Eager calls whose measured host takes longer than their device."""
        return [
            row
            for row in self.rows
            if row.mode == EAGER and row.device_us is not None and row.host_us > row.device_us
        ]

    @property
    def measured_host_speed_ratio(self) -> float | None:
        """The `single_thread_ratio` with which the median of those calls' hosts is as measured."""
        ratios = [row.host_predicted_us / row.host_us for row in self.host_bound]
        if self.host_speed_ratio is None or not ratios:
            return None
        return self.host_speed_ratio * float(np.median(ratios))

    def summary(self) -> list[dict[str, Any]]:
        """Per mode, forward or training: median absolute errors in percent, intervals that hold."""
        kinds: dict[tuple[str, bool], list[ModuleError]] = {}
        for row in self.rows:
            kinds.setdefault((row.mode, row.is_training), []).append(row)
        return [
            {
                "mode": mode,
                "is_training": is_training,
                "n": len(rows),
                "median_pct": _median(row.error_pct for row in rows),
                "bias_pct": _median((row.error_pct for row in rows), signed=True),
                "coverage_frac": float(np.mean([row.within for row in rows])),
                "host_median_pct": _median(row.host_error_pct for row in rows),
                "host_bias_pct": _median((row.host_error_pct for row in rows), signed=True),
                "device_median_pct": _median(row.device_error_pct for row in rows),
            }
            for (mode, is_training), rows in kinds.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "summary": self.summary(),
            "host_bound": len(self.host_bound),
            "measured_host_speed_ratio": self.measured_host_speed_ratio,
            "rows": [row.to_dict() for row in self.rows],
            "warnings": list(self.left_out),
        }


def _median(values: Iterable[float | None], *, signed: bool = False) -> float | None:
    known = [each for each in values if each is not None]
    return float(np.median(known if signed else np.abs(known))) if known else None


def read_calls(path: Path) -> list[MeasuredCall]:
    """The table at `path`, as `collect modules` wrote it.

    Raises `UsageError` that names the file and the line where it is none.
    """
    calls = [_call(row, where) for where, row in csv_rows(path, NEEDED, error=UsageError)]
    if not calls:
        raise UsageError(f"{path}: the table has no rows")
    return calls


def _call(row: Mapping[str, str], where: str) -> MeasuredCall:
    try:
        call_us, host_us = float(row["median_us"]), float(row["host_us"])
        device_us = float(row["device_us"]) if row["device_us"] else None
    except ValueError:
        raise UsageError(f"{where}: a time is no number") from None
    if not all(0 < us < MAX_US for us in (call_us, host_us, 1 if device_us is None else device_us)):
        raise UsageError(f"{where}: a time is not above 0, or above {MAX_US:g} us")
    if not row["device"]:
        raise UsageError(f"{where}: no device")
    if not re.fullmatch(r"[\w.-]+", row["program"]):
        raise UsageError(f"{where}: program {row['program']!r}: expected the name of a file")
    if row["training"] not in ("0", "1"):
        raise UsageError(f"{where}: training {row['training']!r}: 0 or 1")
    if row["mode"] not in HOW:
        raise UsageError(f"{where}: mode {row['mode']!r}: one of {', '.join(HOW)}")
    return MeasuredCall(
        program=row["program"],
        class_name=row["class"],
        mode=row["mode"],
        is_training=row["training"] == "1",
        device=row["device"],
        call_us=call_us,
        host_us=host_us,
        device_us=device_us,
        where=where,
    )


def evaluate_modules(
    calls: Sequence[MeasuredCall],
    programs: Path,
    *,
    hardware: str | None = None,
    settings: Sequence[str] = (),
    overheads: str | None = None,
    begin: Begin = silent,
) -> ModuleErrors:
    """Predictions of `calls`, whose files are in the folder `programs`, which are executed.

    They are made for `hardware` with `settings` (`KIND.KEY=VALUE`), by default the device that the
    table names in its usual node, and with the host of the profile `overheads`. Raises
    `HardwareError` for a device that the catalogue lacks, `PerfmodelError` where no call is
    predicted.
    """
    rows: list[ModuleError] = []
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
            rows.append(_error(call, programs, nodes[call.device], overheads))
        except PerfmodelError as error:
            left_out.append(f"{LEFT_OUT}{error}")
    if not rows:
        reason = left_out[0].removeprefix(LEFT_OUT)
        raise PerfmodelError(f"{programs}: no call of the table can be predicted: {reason}")
    speeds = {each.host.single_thread_ratio for each in nodes.values()}
    speed = speeds.pop() if len(speeds) == 1 else None
    return ModuleErrors(tuple(rows), tuple(dict.fromkeys(left_out)), speed)


def _error(call: MeasuredCall, programs: Path, target: Node, overheads: str | None) -> ModuleError:
    from perfmodel.ops.read.module import graph_of_program  # needs PyTorch

    program = Program(programs / f"{call.program}.py", call.class_name)
    graph = graph_of_program(program, Call(training=call.is_training))
    (result,) = predict(as_run(graph, call.mode), hardware=[target], overheads=overheads).results
    assert result.low_us is not None
    assert result.high_us is not None
    return ModuleError(
        program=call.program,
        mode=call.mode,
        is_training=call.is_training,
        hardware=result.hardware,
        predicted_us=result.step_us,
        low_us=result.low_us,
        high_us=result.high_us,
        measured_us=call.call_us,
        host_predicted_us=host_us(result),
        host_us=call.host_us,
        device_predicted_us=float(result.rank.gpu_active_us),
        device_us=call.device_us,
    )


def host_us(result: Result) -> float:
    """What the host of a predicted call is busy with, waiting aside."""
    timeline = result.timeline
    is_host = np.isin(timeline.graph.nodes_.kind, HOST_KINDS)
    return float((timeline.end_us - timeline.start_us)[is_host].sum())
