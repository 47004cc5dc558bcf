"""What a prediction says, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.errors import Note, UsageError, said_dict
from perfmodel.hardware.reads import SOURCED, FigureRead
from perfmodel.prediction.change import Change, change_dict, changes, gain_dict, rounded
from perfmodel.prediction.intervals import ratio_interval
from perfmodel.provenance import OWN_MODELS, made_by
from perfmodel.timeline.completeness import Gap
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steps import StepRole
from perfmodel.timeline.unexplained import Unexplained
from perfmodel.units import human_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.prediction.explain.reason import Explained, Explainer
    from perfmodel.prediction.kernel_table import KernelTable


SCHEMA = "perfmodel.prediction/1"
DEVICE_FIGURES = ("gpu_active_us", "gpu_idle_us", "comm_us", "exposed_comm_us")


@dataclass(frozen=True)
class LeaveOneOut:
    """A step that was predicted from the others, and what needs no model. Microseconds."""

    low_us: float
    """90 % interval of the step, from the errors of leaving the others out."""
    high_us: float
    null_mean_us: float | None
    """Predictions without a model (`prediction.leave_out.NaivePredictions`): the mean of the other
    steps, that mean with the difference in device time added, the last step before; None where
    there are no other steps."""
    null_mean_gpu_us: float | None
    null_last_us: float | None


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
    left_out: LeaveOneOut | None = None
    """Where the step was left out of what predicts it."""

    @property
    def error_pct(self) -> float | None:
        return error_pct(self.step_us, self.measured_us)


@dataclass(frozen=True)
class RankPrediction:
    """One rank: medians over the steady steps. Microseconds."""

    rank: int
    step_us: float
    """The period of steps that follow one another; of a window, of a pass, what it takes."""
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
    """For the last rank to come to them, per step."""


@dataclass(frozen=True)
class PathPiece:
    """A stretch of the critical path; times after the start of its step."""

    name: str
    kind: str
    start_us: float
    duration_us: float


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
    """By how much `step_us`, the period of steps that follow one another, is longer than the step
    from mark to mark: the device, or a collective, falls behind the host. 0 where it keeps up, None
    for what has no recorded steps."""
    latency_us: float | None = None
    """One step alone, idle machine to idle machine, where `step_us` is the period of many."""
    draws_us: Floats | None = field(default=None, repr=False, compare=False)
    """The step under drawn errors of models, from shapes: for intervals of ratios of two."""
    bound_by: dict[str, float] | None = None
    """Microseconds of the period by resource, along the cycle of dependencies that decides it."""
    relieved_us: dict[str, float] | None = None
    """The period if a resource with a notable part of it had half to do; where a GPU's host has the
    largest, also in CUDA graphs (`shapes.GRAPHS`) and without the host (`shapes.NO_HOST`)."""
    kernels: KernelTable | None = field(default=None, repr=False)
    """What the slowest rank's device runs, where shapes are known."""
    reads: tuple[FigureRead, ...] = field(default=(), repr=False)
    """The figures of the hardware that the prediction follows from."""
    explainer: Explainer | None = field(default=None, repr=False)
    """How its nodes came to their durations."""
    straggler: dict[str, Any] | None = None
    """The rank that the others wait for most, and why (`timeline.straggler`); None for one."""
    cautions: tuple[str, ...] = ()
    """What makes the answer doubtful: much that nobody can explain, a replay that is off."""
    baseline: Result | None = field(default=None, repr=False)
    """Of a what-if: what is predicted without it, on the same hardware."""

    @property
    def gain(self) -> Change | None:
        """By how much the step gets shorter by the what-if; None where there is none."""
        return None if self.baseline is None else Change(self.baseline.step_us, self.step_us)

    def gains_of_ranks(self) -> list[Change | None]:
        """The same for each of `ranks`."""
        return changes(None if self.baseline is None else self.baseline.ranks, self.ranks)

    def gains_of_steps(self) -> list[Change | None]:
        """The same for each step of the slowest rank."""
        before = None if self.baseline is None else self.baseline.ranks[self.slowest].steps
        return changes(before, self.rank.steps)

    @property
    def rank(self) -> RankPrediction:
        """The slowest rank."""
        return self.ranks[self.slowest]

    @property
    def step_us(self) -> float:
        return self.rank.step_us

    @property
    def median_mark(self) -> int:
        """Row of the graph's marks of the slowest rank's step that is closest to its median.

        Warm-up does not count where there are other steps.
        """
        steps = self.rank.steps
        steady = [i for i, step in enumerate(steps) if step.role == StepRole.STEADY]
        steady = steady or list(range(len(steps)))
        closest = min(steady, key=lambda i: abs(steps[i].step_us - self.step_us))
        return int(np.flatnonzero(self.timeline.graph.marks.rank == self.rank.rank)[closest])

    def path_by_cause(self) -> dict[str, float]:
        """Microseconds per cause along the critical path."""
        found: dict[str, float] = {}
        for piece in self.critical_path:
            found[piece.kind] = found.get(piece.kind, 0.0) + piece.duration_us
        return found

    def roofline(self) -> Figure:
        """The step's kernels below the device's roofs. Raises `UsageError` without shapes."""
        if self.kernels is None:
            raise UsageError(f"{self.hardware}: a roofline needs shapes: --mode model")
        return self.kernels.roofline()

    @property
    def assumed(self) -> tuple[FigureRead, ...]:
        """The figures it follows from that are assumed, or recalled from a data sheet."""
        return tuple(each for each in self.reads if each.grounds != SOURCED)

    def explain(self, node: str | int) -> Explained:
        """Why a node takes what it takes: by its number, its operator, its kernel or its label.

        Raises `UsageError` where there is no such node.
        """
        from perfmodel.prediction.explain.node import explain

        return explain(self.timeline, self.explainer, self.hardware, self.mode, str(node))

    def to_dict(self) -> dict[str, Any]:
        rank, before = self.rank, self.baseline
        measured = rank.measured
        errors = None
        if measured:
            recorded_us = rank.step_us - (self.device_lag_us or 0.0)
            errors = {
                "step": rounded(error_pct(recorded_us, measured["step_us"])),
                "gpu_active": rounded(error_pct(rank.gpu_active_us, measured["gpu_active_us"])),
            }
        return {
            "hardware": self.hardware,
            "mode": self.mode,
            **self._interval_dict(),
            "device_lag_us": rounded(self.device_lag_us),
            "latency_us": rounded(self.latency_us),
            "bound_by": _rounded(self.bound_by),
            **_device_dict(rank),
            "measured": _rounded(measured),
            "error_pct": errors,
            "baseline": before and {**before._interval_dict(), **_device_dict(before.rank)},
            **gain_dict(self.gain),
            "steps": [
                _step_dict(step) | change_dict(change)
                for step, change in zip(rank.steps, self.gains_of_steps(), strict=True)
            ],
            "per_rank": self._rank_dicts(),
            "families": self.families,
            "coverage": self.coverage,
            "memory": self.memory,
            "assumed": [each.to_dict() for each in self.assumed],
            "straggler": self.straggler,
            "critical_path": [
                vars(p) | {"start_us": rounded(p.start_us), "duration_us": rounded(p.duration_us)}
                for p in self.critical_path
            ],
        }

    ratio_interval = ratio_interval

    def _interval_dict(self) -> dict[str, float | None]:
        step_us, low_us, high_us = map(rounded, (self.step_us, self.low_us, self.high_us))
        return {"step_us": step_us, "low_us": low_us, "high_us": high_us}

    def _rank_dicts(self) -> list[dict[str, Any]]:
        pairs = zip(self.ranks, self.gains_of_ranks(), strict=True)
        return [_rank_dict(rank) | change_dict(change) for rank, change in pairs]


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

    @property
    def cautions(self) -> list[str]:
        """What makes the answer doubtful, over all results."""
        return list(dict.fromkeys(line for result in self.results for line in result.cautions))

    def paths_by_cause(self) -> dict[str, dict[str, float]]:
        """Microseconds per cause along what decides the typical step: as measured, where it was,
        and as each result and its baseline say."""
        from perfmodel.timeline.critical_path import PathWalker
        from perfmodel.timeline.period import DeviceLags
        from perfmodel.timeline.schedule import measured
        from perfmodel.timeline.steps import steady_steps

        first, found = self.results[0], dict[str, dict[str, float]]()
        if first.mode != "model":
            truth = measured((first.baseline or first).timeline.graph)
            path = DeviceLags.of(truth, steady_steps(truth)).path
            found["measured"] = path(first.median_mark, PathWalker.of(truth)).by_cause()
        for result in self.results:
            name = "predicted" if result.mode == "replay" else result.hardware
            if result.baseline is not None:
                found[name] = result.baseline.path_by_cause()
                name = f"{name}, what-if"
            found[name] = result.path_by_cause()
        return found

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
        import pandas as pd

        return pd.DataFrame(
            {"hardware": result.hardware, "mode": result.mode} | rank
            for result in self.results
            for rank in result._rank_dicts()
        )

    def plot(self, result: int = 0) -> Figure:
        """The predicted timeline of the slowest rank's step closest to the median."""
        from perfmodel.timeline.critical_path import critical_path
        from perfmodel.timeline.figures import step_figure

        chosen = self.results[result]
        path = critical_path(chosen.timeline, chosen.median_mark)
        return step_figure(chosen.timeline, chosen.median_mark, path=path)

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{result.hardware} {human_us(result.step_us)}"
            + (f" ({human_us(low)} to {human_us(high)})" if low and high else "")
            for result in self.results
            for low, high in [(result.low_us, result.high_us)]
        )
        return f"Prediction({self.source['trace']!r}: {steps}; {len(self.warnings)} warnings)"

    def _repr_html_(self) -> str:
        """Per machine the step with its interval, and how many times as fast as the trace, or as
        the first machine, it is; then each rank; then warnings."""
        from perfmodel.plot import table_html
        from perfmodel.plot.names import list_html

        first = self.results[0]
        rows = []
        for result in self.results:
            before = (result.rank.measured or {}).get("step_us") or first.step_us
            interval = result._interval_dict()
            speedup = f"{before / result.step_us:.2f}x" if result.step_us else None
            rows.append([result.hardware, result.mode, *interval.values(), speedup])
        columns = ["hardware", "mode", *first._interval_dict(), "speed-up"]
        ranks = [
            [result.hardware, *_rank_dict(rank).values()]
            for result in self.results
            for rank in result.ranks
        ]
        of_ranks = ["hardware", *_rank_dict(first.rank)]
        kept = [line for line in self.warnings if not isinstance(line, Note)]
        return (
            table_html(rows, columns, f"Prediction of {self.source['trace']}")
            + table_html(ranks, of_ranks, "Ranks")
            + list_html(kept, "Warnings")
        )

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)


def error_pct(predicted: float, measured: float | None) -> float | None:
    """Signed error in percent of the measured value; None without one."""
    return (predicted / measured - 1) * 100 if measured else None


def _rounded(values: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
    return {key: rounded(value) for key, value in values.items()} if values else None


def _device_dict(rank: RankPrediction) -> dict[str, float | None]:
    return {key: rounded(getattr(rank, key)) for key in (*DEVICE_FIGURES, "kernel_sum_us")}


def _step_dict(step: StepPrediction) -> dict[str, Any]:
    return {
        "name": step.name,
        "step_us": rounded(step.step_us),
        "role": step.role.value,
        "warmup": step.role == StepRole.WARM_UP,
        "measured_us": rounded(step.measured_us),
        "error_pct": rounded(step.error_pct),
        "measured_host_frac": rounded(step.measured_host_frac),
        "unexplained_frac": rounded(step.unexplained.frac),
        "left_out": None if step.left_out is None else _rounded(asdict(step.left_out)),
    }


def _rank_dict(rank: RankPrediction) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "step_us": rounded(rank.step_us),
        "measured_us": rounded(rank.measured["step_us"]) if rank.measured else None,
        **_device_dict(rank),
        "transfer_us": rounded(rank.transfer_us),
        "waiting_us": rounded(rank.waiting_us),
    }
