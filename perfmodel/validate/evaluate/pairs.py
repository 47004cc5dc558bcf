"""One program traced on two machines: each trace moved to the other's device, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.prediction import predict
from perfmodel.prediction.ratios import transfer_ratio
from perfmodel.prediction.result import recorded_figures
from perfmodel.prediction.transferred import source_machine
from perfmodel.prediction.types import Result
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.schedule import measured
from perfmodel.timeline.steps import steady_steps
from perfmodel.trace import Trace, read

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.evaluation.pairs/1"
STEP, GPU_ACTIVE, GPU_IDLE = TIMES = ("step", "gpu_active", "gpu_idle")


@dataclass(frozen=True)
class TransferredTime:
    """One time of a step, or the device time of one kernel family, moved and measured; us."""

    name: str
    predicted_us: float
    source_us: float
    """What it takes in the trace that was moved: the prediction that needs no model."""
    roofline_us: float | None
    """By roofline ratios of the kernels' classes; None of a step and of idle time."""
    measured_us: float

    def error_pct(self, us: float | None) -> float | None:
        """`us` over measured; None where either is not known or nothing was measured."""
        if us is None or self.measured_us <= 0:
            return None
        return 100 * (us / self.measured_us - 1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "error_pct": self.error_pct(self.predicted_us),
            "same_error_pct": self.error_pct(self.source_us),
            "roofline_error_pct": self.error_pct(self.roofline_us),
        }


@dataclass(frozen=True)
class Direction:
    """One trace moved to the device of the other."""

    trace: str
    source: str
    target: str
    low_us: float
    high_us: float
    times: tuple[TransferredTime, ...]
    """Of the slowest rank: the step, and when its device was active and idle."""
    families: tuple[TransferredTime, ...]
    """Device time per kernel family of that rank, longest first."""

    def time(self, name: str) -> TransferredTime:
        return self.times[TIMES.index(name)]

    @property
    def within(self) -> bool:
        return self.low_us <= self.time(STEP).measured_us <= self.high_us

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "within": self.within,
            "times": [each.to_dict() for each in self.times],
            "families": [each.to_dict() for each in self.families],
        }


@dataclass(frozen=True)
class PairErrors:
    """All directions of all pairs."""

    directions: tuple[Direction, ...]

    def summary(self) -> dict[str, float]:
        """Mean absolute errors in percent, and the share of steps within their intervals."""
        result: dict[str, float] = {"n": len(self.directions)}
        for name in (STEP, GPU_ACTIVE):
            rows = [each.time(name).to_dict() for each in self.directions]
            for key, what in (("error_pct", "pct"), ("same_error_pct", "same_pct")):
                known = [abs(row[key]) for row in rows if row[key] is not None]
                result[f"{name}_{what}"] = float(np.mean(known)) if known else float("nan")
        result["coverage_frac"] = float(np.mean([each.within for each in self.directions]))
        return result

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "summary": self.summary(),
            "directions": [each.to_dict() for each in self.directions],
        }

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(
            {"trace": each.trace, "source": each.source, "target": each.target} | moved.to_dict()
            for each in self.directions
            for moved in (*each.times, *each.families)
        )


def evaluate_pairs(
    paths: Sequence[str | Path], *, max_bytes: int = DEFAULT_MAX_BYTES, begin: Begin = silent
) -> PairErrors:
    """`paths` by twos: the same program on two machines, moved both ways.

    Raises `UsageError` for a path without its pair and for a pair on one device, `TraceError` for
    traces that cannot be read or name no GPU.
    """
    if not paths or len(paths) % 2:
        raise UsageError(f"{len(paths)} traces: expected pairs, each of one program on two GPUs")
    result = []
    for one, other in zip(begun(paths[::2], begin), paths[1::2], strict=True):
        sides = [_Side.of(path, max_bytes) for path in (one, other)]
        if sides[0].device == sides[1].device:
            raise UsageError(f"{one} and {other}: both ran on {sides[0].device.name}")
        result += [_transferred(*sides), _transferred(*reversed(sides))]
    return PairErrors(tuple(result))


@dataclass(frozen=True)
class _Side:
    trace: Trace
    device: Device
    result: Result

    @classmethod
    def of(cls, path: str | Path, max_bytes: int) -> _Side:
        trace = read(path, max_bytes=max_bytes)
        machine = source_machine(trace, "so there is nothing to move it to or from")
        return cls(trace, machine.node.device, predict(trace).results[0])

    def roofline(self, target: Device) -> dict[str, float]:
        """Per kernel family, and for all (`GPU_ACTIVE`), time on `target` over time here."""
        graph = build_graph(self.trace)
        rows = graph.device_span(self.result.rank.rank)[1]
        labels, taken = [graph.labels[row] for row in rows.tolist()], graph.nodes_.duration_us[rows]
        families, dtypes = families_of_kernels(labels), dtypes_of_kernels(labels)
        ratio = transfer_ratio(families, dtypes, self.device, target, duration_us=taken)
        of = {name: np.array(families) == name for name in set(families)}
        of[GPU_ACTIVE] = np.ones(len(rows), bool)
        return {
            name: float((taken * ratio)[own].sum() / taken[own].sum())
            for name, own in of.items()
            if taken[own].sum() > 0
        }


def _transferred(source: _Side, target: _Side) -> Direction:
    result = predict(source.trace, hardware=target.device.name).results[0]
    ratio = source.roofline(target.device)
    graph, rank = result.timeline.graph, result.rank.rank
    marks = np.flatnonzero(graph.marks.rank == rank)[steady_steps(measured(graph))]
    # Of the moved trace, from mark to mark: what the other trace measured is, too.
    moved = recorded_figures(result.timeline, rank, marks)
    here, there = (side.result.rank.measured or {} for side in (source, target))

    def compared(name: str, us: float, before_us: float, measured_us: float) -> TransferredTime:
        roofline_us = before_us * ratio[name] if name in ratio else None
        return TransferredTime(name, us, before_us, roofline_us, measured_us)

    after, before, true = (
        {row["family"]: row["time_us"] for row in each.families or ()}
        for each in (result, source.result, target.result)
    )
    families = sorted({*after, *true}, key=lambda name: -true.get(name, 0.0))
    assert result.low_us is not None
    assert result.high_us is not None
    return Direction(
        trace=str(source.trace.source),
        source=source.device.name,
        target=target.device.name,
        low_us=result.low_us,
        high_us=result.high_us,
        times=tuple(
            compared(name, *(each[f"{name}_us"] for each in (moved, here, there))) for name in TIMES
        ),
        families=tuple(
            compared(name, *(each.get(name, 0.0) for each in (after, before, true)))
            for name in families
        ),
    )
