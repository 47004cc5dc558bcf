"""How many steps lie in the interval of their trace without them, and what errors nulls have.

    python benchmarks/step_intervals.py [FOLDER|TRACE ...]

Every steady step of every trace is left out in turn: `not seen` is the interval that a replay of
the others carries, `left out` the one around its prediction from the others' costs. How many hold
their step is counted with the shipped constants, then with those that all other traces give
(`prediction/intervals.py`). The errors are of `--leave-one-step-out` and of the three nulls.
Without paths: the traces below `$PERFMODEL_REFERENCE`, those of this project, and the demo.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.measure import REPO
from benchmarks.tables import markdown
from perfmodel.base.arrays import Floats
from perfmodel.errors import PerfmodelError
from perfmodel.prediction import predict
from perfmodel.prediction.intervals import (
    COVERED_FRAC,
    PRIOR,
    Prior,
    median_errors,
    student_quantile,
    unseen_errors,
    unseen_step_interval,
)
from perfmodel.prediction.types import RankPrediction
from perfmodel.timeline.schedule import StepRole, by_rank_and_step
from perfmodel.trace import read
from perfmodel.validate.evaluate.jobs import Job, demo_job, find_jobs

KEYS = ("replay", "null_mean_us")


@dataclass(frozen=True)
class LeftOutStep:
    """A step that was left out of its trace, by one of the two ways to predict it."""

    trace: str
    way: str
    true_us: float
    predicted_us: float
    error: float
    """What the constants are fitted to: of the trace's own schedule, as its seen errors are."""
    seen: Floats
    """The errors of the trace without the step."""

    def bounds(self, prior: Prior = PRIOR) -> tuple[float, float]:
        return unseen_step_interval(self.predicted_us, self.seen, prior)

    def holds(self, prior: Prior = PRIOR) -> bool:
        low, high = self.bounds(prior)
        return low <= self.true_us <= high


def left_out_steps(trace: str, rank: RankPrediction, replayed_us: Floats) -> list[LeftOutStep]:
    """Both ways for each steady step of a rank (predictions of steps left out)."""
    steady = [at for at, step in enumerate(rank.steps) if step.role == StepRole.STEADY]
    if len(steady) < 2:
        return []
    true = np.array([rank.steps[at].measured_us for at in steady])
    left = np.array([rank.steps[at].step_us for at in steady])
    replayed = replayed_us[steady]
    found = []
    seen = unseen_errors(replayed, left)
    for at, true_us in enumerate(true.tolist()):
        others = np.delete(replayed, at)
        middle, measured = float(np.median(others)), float(np.median(np.delete(true, at)))
        known = median_errors(others) if len(others) > 1 else np.zeros(0)
        error = float(np.log(true_us / measured))
        found += [
            LeftOutStep(trace, "not seen", true_us, middle, error, known),
            LeftOutStep(
                trace, "left out", true_us, float(left[at]), float(seen[at]), np.delete(seen, at)
            ),
        ]
    return found


def null_errors(ranks: Sequence[RankPrediction]) -> dict[str, Floats]:
    """Absolute errors of the steady steps, by prediction; nan where there is none."""
    steps = [step for rank in ranks for step in rank.steps if step.role == StepRole.STEADY]
    table: dict[str, list[float | None]] = {"replay": [step.step_us for step in steps]}
    table["null_mean_us"] = [(step.left_out or {}).get("null_mean_us") for step in steps]
    true = np.array([step.measured_us for step in steps], float)
    return {key: np.abs(np.array(values, float) / true - 1) for key, values in table.items()}


def null_interval(steps: Sequence[LeftOutStep]) -> list[tuple[bool, float]]:
    """Of one rank: whether mean ± t · deviation of the others holds each step, and its width."""
    true = np.array([step.true_us for step in steps])
    found = []
    for at, us in enumerate(true):
        others = np.delete(true, at)
        if len(others) < 2:
            continue
        half = student_quantile(len(others) - 1) * others.std(ddof=1) * (1 + 1 / len(others)) ** 0.5
        found.append((abs(us - others.mean()) <= half, 2 * half / others.mean()))
    return found


def fit(steps: Sequence[LeftOutStep]) -> Prior:
    """The constants that make the errors of steps likeliest, every trace and way of equal weight,
    widened until they cover as many as they say."""
    from scipy.optimize import minimize
    from scipy.stats import t

    keys = [(step.trace, step.way) for step in steps]
    weight = np.array([1 / keys.count(key) for key in keys])
    error = np.array([step.error for step in steps])
    count = np.array([len(step.seen) for step in steps])
    squares = np.array([np.sum(step.seen**2) for step in steps])

    def loss(logs: Floats) -> float:
        spread, own = np.exp(logs)
        scale = np.sqrt((own * spread**2 + squares) / (own + count))
        return -float((weight * t.logpdf(error, own + np.maximum(count - 1, 0), scale=scale)).sum())

    spread, own = np.exp(minimize(loss, [np.log(0.05), 0.0], method="Nelder-Mead").x).tolist()
    narrow = Prior(spread, own, 1.0)
    over = np.abs(error) / np.array([narrow.bound(step.seen) for step in steps])
    order = np.argsort(over)
    covered = np.cumsum(weight[order]) / weight.sum()
    return Prior(spread, own, float(over[order][np.searchsorted(covered, COVERED_FRAC)]))


def main(paths: Sequence[str]) -> None:
    """Print the table of traces, the sums, and the constants."""
    steps: list[LeftOutStep] = []
    of_null: dict[str, list[tuple[bool, float]]] = {}
    sizes: dict[str, dict[str, Floats]] = {}
    for job in jobs(paths):
        try:
            found = predict(read(job.path), leave_one_step_out=True).results[0]
        except PerfmodelError:
            continue  # no times, or fewer than two steady steps
        replayed_us = by_rank_and_step(found.timeline.graph, found.timeline.step_us)
        sizes[job.name], of_null[job.name] = null_errors(found.ranks), []
        for rank, own_us in zip(found.ranks, replayed_us, strict=True):
            of_rank = left_out_steps(job.name, rank, own_us)
            steps += of_rank
            of_null[job.name] += null_interval(of_rank[::2])
    held: dict[int, bool] = {}
    for name in sizes:
        others = fit([step for step in steps if step.trace != name]) if len(sizes) > 1 else PRIOR
        held |= {id(step): step.holds(others) for step in steps if step.trace == name}
    if not sizes:
        sys.exit("no trace with two steady steps")
    groups = {name: {name} for name in sizes} | {"all": set(sizes)}
    rows = []
    for title, names in groups.items():
        cells = [title, str(sum(step.trace in names for step in steps) // 2)]
        for way in ("not seen", "left out"):
            own = [step for step in steps if step.trace in names and step.way == way]
            cells.append(f"{sum(step.holds() for step in own)}, {sum(held[id(s)] for s in own)}")
            cells.append(percent(width(own)))
        beside = [one for name in names for one in of_null[name]]
        cells.append(f"{sum(inside for inside, _ in beside)} of {len(beside)}")
        cells.append(percent([wide for _, wide in beside]))
        of_group = [sizes[name] for name in names]
        cells += [percent(np.concatenate([one[key] for one in of_group])) for key in KEYS]
        rows.append(cells)
    titles = ["trace", "steps", "not seen: hold", "width", "left out: hold", "width"]
    titles += ["null: hold", "width", "error", "mean", "mean + GPU", "last"]
    print(markdown(titles, rows))
    fitted = fit(steps)
    print("constants fitted here, shipped:")
    for field in fields(Prior):
        print(f"{field.name}: {getattr(fitted, field.name):.4g}, {getattr(PRIOR, field.name):.4g}")


def jobs(paths: Sequence[str]) -> list[Job]:
    """The traces of paths; without any, those at hand."""
    if paths:
        return find_jobs(paths)
    data = Path(os.environ.get("PERFMODEL_REFERENCE", REPO.parent / "shared" / "data"))
    folders = [data / "traces", data / "traces_2", REPO / "traces"]
    return [*find_jobs(folder for folder in folders if folder.is_dir()), demo_job()]


def width(steps: Sequence[LeftOutStep]) -> list[float]:
    """Of each interval, as a share of what it is around."""
    return [(high - low) / step.predicted_us for step in steps for low, high in [step.bounds()]]


def percent(shares: Sequence[float] | Floats) -> str:
    """The mean of those that are known."""
    known = np.array(shares, float)
    known = known[~np.isnan(known)]
    return f"{100 * known.mean():.1f} %" if len(known) else "-"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*")
    main(parser.parse_args().paths)
