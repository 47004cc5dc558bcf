"""What a prediction says, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.answers import OWN_MODELS, made_by
from perfmodel.base.arrays import Floats
from perfmodel.base.units import counted, error_pct, human_us
from perfmodel.errors import Note, prefixed, said_dict
from perfmodel.hardware.schema import SOURCED, FigureRead
from perfmodel.prediction.breakdown.completeness import Gap
from perfmodel.prediction.breakdown.waiting import RankWaiting, Unexplained
from perfmodel.timeline.schedule import StepRole, Timeline
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.hardware import Device
    from perfmodel.prediction.explain import Explained, Explainer


SCHEMA = "perfmodel.prediction/1"
REPLAY, TRANSFER, MODEL = MODES = "replay", "transfer", "model"
DEVICE_FIGURES = ("gpu_active_us", "gpu_idle_us", "comm_us", "exposed_comm_us")
DEVICE_WORK = (*DEVICE_FIGURES, "kernel_sum_us")
INTERVAL = ("step_us", "low_us", "high_us")


MOST_SHOWN = 3
"""Machines of a prediction in the one line that stands for it."""
_CHANGE = ("baseline_us", "gain_us", "gain_frac")


@dataclass(frozen=True)
class StepPrediction:
    """One step: predicted and, where the trace has it, measured. Microseconds."""

    name: str
    step_us: float
    role: StepRole
    measured_us: float | None
    measured_host_frac: float
    """Share of the step's critical path that is measured host work: near 1, a replay is an echo."""
    unexplained: Unexplained
    """What of the step's critical path waits for something that was not recorded."""
    left_out: dict[str, float | None] | None = None
    """Of a step that was predicted from the others, microseconds: `low_us` and `high_us`, its 90 %
    interval by the errors of leaving the others out, and what needs no model (`null_mean_us`)."""

    @property
    def error_pct(self) -> float | None:
        return error_pct(self.step_us, self.measured_us)


@dataclass(frozen=True)
class RankPrediction:
    """One rank: medians over the steady steps. Microseconds."""

    rank: int
    step_us: float
    """The period of steps that follow one another; of a window or a pass, its length."""
    gpu_active_us: float
    gpu_idle_us: float
    kernel_sum_us: float
    comm_us: float
    exposed_comm_us: float
    measured: dict[str, float] | None
    steps: list[StepPrediction] = field(repr=False)
    transfer_us: float | None = None
    """Of the collectives where ranks meet, per step; None for a rank alone."""
    waiting_us: float | None = None
    """For the last rank to come to them."""


@dataclass(frozen=True)
class PathPiece:
    """A stretch of the critical path; times after the start of its step."""

    name: str
    kind: str
    start_us: float
    duration_us: float
    node: int = NONE
    """Of the graph; -1 of what is none."""


@dataclass(frozen=True)
class Result:
    """A prediction for one hardware configuration: the slowest rank's figures stand for the job."""

    hardware: str
    mode: str
    low_us: float | None
    high_us: float | None
    ranks: list[RankPrediction]
    slowest: int
    """Index into `ranks`."""
    families: list[dict[str, Any]]
    coverage: dict[str, float]
    critical_path: list[PathPiece] = field(repr=False)
    timeline: Timeline = field(repr=False)
    memory: dict[str, Any] | None = None
    """Bytes that the rank needs at its peak, where the ops tell (`MemoryUse`)."""
    device_lag_us: float | None = None
    """By how much `step_us`, a period, is longer than the step from mark to mark: the device falls
    behind the host. 0 where it keeps up, None without recorded steps."""
    latency_us: float | None = None
    """One step alone, idle machine to idle machine, where `step_us` is the period of many."""
    draws_us: Floats | None = field(default=None, repr=False, compare=False)
    """The step under drawn errors of models, from shapes: for intervals of ratios of two."""
    bound_by: dict[str, float] | None = None
    """Microseconds of the period by resource, along the cycle of dependencies that decides it."""
    relieved_us: dict[str, float] | None = None
    """The period if a resource with a notable part of it had half to do."""
    reads: tuple[FigureRead, ...] = field(default=(), repr=False)
    """The figures of the parts of the hardware that the prediction uses."""
    explainer: Explainer | None = field(default=None, repr=False)
    """How its nodes came to their durations."""
    waiting: RankWaiting | None = field(default=None, repr=False)
    """What its ranks spend where they meet; None for one."""
    cautions: tuple[str, ...] = ()
    """What makes the answer doubtful."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What else a user should know of it."""
    cost: dict[str, Any] | None = None
    """What its machine draws and costs (`running_cost.billed`); None of a replay."""
    baseline: Result | None = field(default=None, repr=False)
    """Of a what-if: what is predicted without it, on the same hardware."""

    @property
    def text(self) -> str:
        """Machine, step and interval in a few words."""
        bounds = [human_us(us) for us in (self.low_us, self.high_us) if us]
        interval = f" ({' to '.join(bounds)})" if len(bounds) == 2 else ""
        return f"{self.hardware} {human_us(self.step_us)}{interval}"

    def __repr__(self) -> str:
        return f"Result({self.text}; {self.mode}, {len(self.ranks)} ranks)"

    @property
    def gain(self) -> dict[str, float | None]:
        """By how much the step gets shorter by the what-if (`gain_us`), and of the baseline's
        (`gain_frac`); None where there is none."""
        return _changed(self.baseline, self)

    @property
    def rank(self) -> RankPrediction:
        return self.ranks[self.slowest]

    @property
    def step_us(self) -> float:
        return self.rank.step_us

    @property
    def median_mark(self) -> int:
        """Row of the graph's marks of the slowest rank's steady step closest to its median."""
        steps = self.rank.steps
        steady = [i for i, step in enumerate(steps) if step.role == StepRole.STEADY]
        steady = steady or list(range(len(steps)))
        closest = min(steady, key=lambda i: abs(steps[i].step_us - self.step_us))
        return int(np.flatnonzero(self.timeline.graph.marks.rank == self.rank.rank)[closest])

    @property
    def straggler(self) -> dict[str, Any] | None:
        """The rank that the others wait for most, and why; None for one."""
        return None if self.waiting is None else self.waiting.to_dict()

    @property
    def device(self) -> Device | None:
        """What its kernels run on, where shapes say how long."""
        machine = getattr(self.explainer, "machine", None)
        return None if machine is None else machine.node.device

    @property
    def assumed(self) -> tuple[FigureRead, ...]:
        """The figures it follows from that are assumed, or recalled from a data sheet."""
        return tuple(each for each in self.reads if each.grounds != SOURCED)

    def explain(self, node: str | int) -> Explained:
        """Why a node takes what it takes: by its number, operator, kernel or label.

        Raises `UsageError` where there is no such node.
        """
        from perfmodel.prediction.explain import explain

        return explain(self.timeline, self.explainer, self.hardware, self.mode, str(node))

    def to_dict(self) -> dict[str, Any]:
        rank, before, measured = self.rank, self.baseline, self.rank.measured
        errors = None
        if measured:
            recorded_us = rank.step_us - (self.device_lag_us or 0.0)
            errors = {
                "step": error_pct(recorded_us, measured["step_us"]),
                "gpu_active": error_pct(rank.gpu_active_us, measured["gpu_active_us"]),
            }
        steps = before.ranks[self.slowest].steps if before else [None] * len(rank.steps)
        return {
            "hardware": self.hardware,
            "mode": self.mode,
            **_picked(self, (*INTERVAL, "device_lag_us", "latency_us")),
            "bound_by": _rounded(self.bound_by),
            **_picked(rank, DEVICE_WORK),
            "measured": _rounded(measured),
            "error_pct": _rounded(errors),
            "baseline": before
            and {**_picked(before, INTERVAL), **_picked(before.rank, DEVICE_WORK)},
            **{name: self.gain[name] for name in _CHANGE[1:]},
            "steps": [
                {
                    "name": step.name,
                    "step_us": _round(step.step_us),
                    "role": step.role.value,
                    "warmup": step.role == StepRole.WARM_UP,
                    **_picked(step, ("measured_us", "error_pct", "measured_host_frac")),
                    "unexplained_frac": _round(step.unexplained.frac),
                    "left_out": _rounded(step.left_out),
                    **_changed(was, step),
                }
                for was, step in zip(steps, rank.steps, strict=True)
            ],
            "per_rank": self.rank_records(),
            "families": self.families,
            "coverage": self.coverage,
            "memory": self.memory,
            "cost": self.cost,
            "assumed": [each.to_dict() for each in self.assumed],
            "straggler": self.straggler,
            "critical_path": [
                {"name": piece.name, "kind": piece.kind}
                | _picked(piece, ("start_us", "duration_us"))
                for piece in self.critical_path
            ],
        }

    def rank_records(self) -> list[dict[str, Any]]:
        before = self.baseline.ranks if self.baseline else [None] * len(self.ranks)
        return [
            {
                "rank": rank.rank,
                "step_us": _round(rank.step_us),
                "measured_us": _round((rank.measured or {}).get("step_us")),
                **_picked(rank, (*DEVICE_WORK, "transfer_us", "waiting_us")),
                **_changed(was, rank),
            }
            for was, rank in zip(before, self.ranks, strict=True)
        ]


@dataclass(frozen=True)
class Prediction:
    """Predictions of one trace on one or several hardware configurations."""

    source: dict[str, Any]
    results: list[Result]
    warnings: list[str] = field(default_factory=list)
    """What a user should know, the cautions of its results first."""
    own_models: str = field(default_factory=OWN_MODELS.get, repr=False)
    """Digest of the user's models that answered; empty where the package's own did."""
    gaps: list[Gap] = field(default_factory=list)
    """What the recording behind it cannot tell; nothing of configurations."""

    @classmethod
    def of(
        cls, source: dict[str, Any], results: list[Result], said: Iterable[str] = (), **more: Any
    ) -> Prediction:
        """Of `results`, with what is `said` of all, then the notes of each, none twice."""
        own = [prefixed(result.hardware, note) for result in results for note in result.notes]
        return cls(source, results, list(dict.fromkeys([*said, *own])), **more)

    @property
    def cautions(self) -> list[str]:
        return list(dict.fromkeys(line for result in self.results for line in result.cautions))

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/prediction.json` describes it."""
        return {
            "schema": SCHEMA,
            "made_by": made_by(self.own_models),
            "source": self.source,
            "completeness": [gap.to_dict() for gap in self.gaps],
            "results": [result.to_dict() for result in self.results],
            **said_dict(self.warnings),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per result and rank."""
        from perfmodel.base.frames import frame_of_records

        return frame_of_records(
            {"hardware": result.hardware, "mode": result.mode} | rank
            for result in self.results
            for rank in result.rank_records()
        )

    def plot(self, result: int = 0) -> Figure:
        """The predicted timeline of the slowest rank's step closest to the median."""
        from perfmodel.timeline.critical_path import critical_path, step_figure

        chosen = self.results[result]
        path = critical_path(chosen.timeline, chosen.median_mark)
        return step_figure(chosen.timeline, chosen.median_mark, path=path)

    def __repr__(self) -> str:
        steps = [each.text for each in self.results[:MOST_SHOWN]]
        steps += [f"{more} more"] if (more := len(self.results) - MOST_SHOWN) > 0 else []
        about = f"{', '.join(steps)}; {counted(len(self.warnings), 'warning')}"
        return f"Prediction({self.source['trace']!r}: {about})"

    def _repr_html_(self) -> str:
        """Machines with their speed-up over the trace, or the first of them; ranks; warnings."""
        from perfmodel.plot import table_html
        from perfmodel.plot.names import list_html

        first, rows = self.results[0], []
        for result in self.results:
            before = (result.rank.measured or {}).get("step_us") or first.step_us
            speedup = f"{before / result.step_us:.2f}x" if result.step_us else None
            interval = _picked(result, INTERVAL).values()
            rows.append([result.hardware, result.mode, *interval, speedup])
        columns = ["hardware", "mode", *INTERVAL, "speed-up"]
        ranks = self.to_frame().drop(columns=["mode", *_CHANGE])
        kept = [line for line in self.warnings if not isinstance(line, Note)]
        return (
            table_html(rows, columns, f"Prediction of {self.source['trace']}")
            + table_html(ranks.to_numpy(object).tolist(), list(ranks), "Ranks")
            + list_html(kept, "Warnings")
        )

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)


def _changed(before: Any, after: Any) -> dict[str, float | None]:
    """What makes the step of one of the other; all None where there is none `before`."""
    if before is None:
        return dict.fromkeys(_CHANGE)
    gain_us = before.step_us - after.step_us
    frac = gain_us / before.step_us if before.step_us else None
    return dict(zip(_CHANGE, map(_round, (before.step_us, gain_us, frac)), strict=True))


def _rounded(values: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
    return {name: _round(value) for name, value in values.items()} if values else None


def _picked(values: object, names: Iterable[str]) -> dict[str, Any]:
    """Numbers of `values` by name, rounded; all None of nothing."""
    return {name: _round(getattr(values, name, None)) for name in names}


def _round(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)
