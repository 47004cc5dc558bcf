"""Intervals of steps: by Monte Carlo over models' errors, and from the errors of steps left out.

An error is the logarithm of a step over what the other steps predict of it. As few of them say
little, the scatter of other traces' steps counts as some more errors (Student's t distribution).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats, Ints, median, quantile
from perfmodel.ops.families import classes_of_kernels
from perfmodel.prediction.ratios import HOST_SPREAD, RATIO_SPREAD
from perfmodel.prediction.scheduled import ScheduledSteps
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.graph.kinds import Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import Timeline, ranks_of, schedule, step_us_of_many
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    from perfmodel.prediction.types import Result

HOST = "host"
DRAWS = 64
COVERED_FRAC = 0.9
_ENDS = (1 - COVERED_FRAC) / 2, (1 + COVERED_FRAC) / 2
_NORMAL = NormalDist()
_Z_OF_BOUND = _NORMAL.inv_cdf((1 + COVERED_FRAC) / 2)
"""The normal quantile that leaves 5 % above it."""
MAX_NODES = 50_000
"""Of larger graphs the critical path alone is drawn, not scheduled anew."""
_MIN_US = 1e-9


@dataclass(frozen=True)
class Drawn:
    """A median step, and what it is under each of `DRAWS` drawn errors of models `[draws]`."""

    middle_us: float
    draws_us: Floats

    @property
    def interval(self) -> tuple[float, float]:
        """90 % of the draws, and the step itself."""
        low, high = (quantile(self.draws_us, end) for end in _ENDS)
        return min(float(low), self.middle_us), max(float(high), self.middle_us)


OWN_SPREAD = 1.17
"""Factor within which 90 % of ratios of two steps on one device lie, beyond what is off equally in
both. fitted_on: 11 ratios of MLPerf's configurations of DLRM-DCNv2 on H100 and B200, rms error
0.097 (`benchmarks/step_ratios.py`)."""


def ratio_interval(one: Result, other: Result) -> tuple[float, float] | None:
    """90 % interval of the ratio of two steps; None where either has no interval.

    On one device models are off equally in both, so that the ratio is known better than the steps;
    else every draw of the one may meet every draw of the other. Each has `OWN_SPREAD` in addition,
    unless both are the same step. Without draws, errors of both are independent.
    """
    if one.draws_us is None or other.draws_us is None:
        if not (one.low_us and one.high_us and other.low_us and other.high_us):
            return None
        low, high = log(one.step_us / one.low_us), log(one.high_us / one.step_us)
        most, least = log(other.step_us / other.low_us), log(other.high_us / other.step_us)
        ratio = one.step_us / other.step_us
        return ratio * exp(-hypot(low, least)), ratio * exp(hypot(high, most))
    is_shared, ratio = one.device == other.device, one.step_us / other.step_us
    if is_shared and np.array_equal(one.draws_us, other.draws_us):
        return ratio, ratio
    of_one, of_other = one.draws_us / one.step_us, other.draws_us / other.step_us
    ratios = of_one / of_other if is_shared else (of_one[:, None] / of_other).ravel()
    low, high = np.log([quantile(ratios, end) for end in _ENDS])
    own = log(OWN_SPREAD)
    return ratio * exp(-hypot(min(low, 0.0), own)), ratio * exp(hypot(max(high, 0.0), own))


def drawn_step(
    errors: ScheduledSteps,
    rank: int,
    host_spread: tuple[float, float],
    periods: Periods | None = None,
) -> Drawn:
    """A rank's median step with its draws, microseconds; with `periods`, that of its recorded
    steps as they follow one another. `host_spread`: within which factors 90 % of host times lie.

    A draw moves all pieces of a family together, each within its own interval; families and the
    host are independent. Every draw is scheduled; of a step that repeats, and of graphs above
    `MAX_NODES`, the critical path alone is drawn.
    """
    durations, timeline = errors.durations, errors.timeline
    middle = np.maximum(durations.duration_us, _MIN_US)
    low = np.append(np.clip(durations.low_us / middle, _MIN_US, 1.0), host_spread[0])
    high = np.append(np.maximum(durations.high_us / middle, 1.0), host_spread[1])
    names = [*errors.families, HOST]
    kinds = list(dict.fromkeys(names))
    of_piece = np.array([kinds.index(name) for name in names])
    draws = np.stack([normal_draws(kind) for kind in kinds])

    def factors(nodes: Ints) -> Floats:
        piece = np.where(nodes == NONE, NONE, errors.built.piece[nodes])
        z = draws[of_piece[piece]]
        factor: Floats = np.where(z < 0, low[piece][:, None] ** -z, high[piece][:, None] ** z)
        return factor

    taken_us = timeline.end_us - timeline.start_us
    return _drawn(taken_us, rank, factors, timeline, periods, path_alone=errors.copies > 1)


def transfer_interval(periods: Periods, duration_us: Floats, rank: int) -> tuple[float, float]:
    """90 % interval of a rank's step, microseconds, from those of ratios between devices.

    A draw moves all kernels of a class together, classes and the host independently, as of
    `drawn_step`.
    """
    graph, spread = periods.graph, {**RATIO_SPREAD, HOST: HOST_SPREAD, "": 1.0}
    names = list(spread)
    table = np.stack([spread[name] ** normal_draws(name) for name in names])
    kind = np.full(len(graph), names.index(""))
    device = np.flatnonzero(graph.on_device)
    labels = [graph.labels[node] for node in device.tolist()]
    kind[device] = [names.index(name) for name in classes_of_kernels(labels)]
    kind[np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))] = names.index(HOST)

    def factors(nodes: Ints) -> Floats:
        found: Floats = table[np.where(nodes == NONE, names.index(""), kind[nodes])]
        return found

    return _drawn(duration_us, rank, factors, graph, periods).interval


def _drawn(
    taken_us: Floats,
    rank: int,
    factors: Callable[[Ints], Floats],
    of: Timeline | ExecutionGraph,
    periods: Periods | None,
    *,
    path_alone: bool = False,
) -> Drawn:
    """A rank's median step with nodes that have `taken_us`, scheduled or to be, and that of each
    draw, by `factors` of nodes `[nodes, draws]` (also of -1, no node); with `path_alone`, of the
    critical path of the step in the middle; of `periods` that repeat, of the step closest to their
    median."""
    if periods is not None and periods.repeated:
        every_us = periods.step_us(taken_us)[ranks_of(periods.graph).index(rank)]
        middle_us = median(every_us)
        at = int(np.argmin(np.abs(every_us - middle_us)))
        step = periods.of_step[rank, int(periods.steps[at])]
        nodes, base, changed_us = step.step.nodes, step.cycle(taken_us), taken_us.copy()
        draws_us = np.empty(DRAWS)
        for draw, factor in enumerate(factors(nodes).T):
            changed_us[nodes] = taken_us[nodes] * factor
            draws_us[draw] = step.cycle(changed_us, base.cycle).ratio
        scale = middle_us / every_us[at] if every_us[at] else 1.0
        return Drawn(middle_us, draws_us * scale)
    timeline = of if isinstance(of, Timeline) else schedule(of, taken_us)
    graph = timeline.graph
    marks = np.flatnonzero(graph.marks.rank == rank)
    step_us = timeline.step_us[marks]
    if path_alone or len(graph) > MAX_NODES:
        mark = int(marks[np.argsort(step_us)[len(marks) // 2]])
        path = critical_path(timeline, mark, PathWalker(timeline))
        nodes = np.array([part.node if part.edge == NONE else NONE for part in path])
        part_us = np.array([part.end_us - part.start_us for part in path])
        steps = (part_us[:, None] * factors(nodes)).sum(axis=0)
    else:
        drawn = step_us_of_many(graph, taken_us[:, None] * factors(np.arange(len(graph))))
        steps = np.array([median(each) for each in drawn[marks].T])
    return Drawn(median(step_us), np.asarray(steps, np.float64))


def normal_draws(kind: str) -> Floats:
    """Normal errors of one family, one in each of `DRAWS` equal shares of the distribution (-1 and
    1 bound 90 %), in an order of its own that is the same in every process."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    errors = np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()]) / _Z_OF_BOUND
    return errors[np.random.default_rng(zlib.crc32(kind.encode())).permutation(DRAWS)]


@dataclass(frozen=True)
class Prior:
    """What is known of a trace's errors before any is."""

    spread: float
    """Their root mean square."""
    errors: float
    """How many of the trace's own errors it counts for."""
    widening: float
    """By how much the bounds that follow are too close: errors that leave one step out share all
    other steps."""

    def bound(self, seen: Floats) -> float:
        """The bound of a further error in 90 % of cases, where `seen` are known (nan: nothing)."""
        seen = seen[np.isfinite(seen)]
        known = self.errors + len(seen)
        mean_square = (self.errors * self.spread**2 + float(np.sum(seen**2))) / known
        freedom = self.errors + max(len(seen) - 1, 0)
        return self.widening * student_quantile(freedom) * sqrt(mean_square)


def student_quantile(freedom: float, covered_frac: float = COVERED_FRAC) -> float:
    """The bound that Student's t stays within."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + covered_frac) / 2))


PRIOR = Prior(spread=0.0394, errors=1.73, widening=1.144)
"""fitted_on: 17 traces of 2 to 8 steps (CPU, V100, A100, MI300X), by likelihood, then the widening
that covers 90 %. Source: `benchmarks/step_intervals.py`."""


def median_errors(step_us: Floats) -> Floats:
    """The error of each step (two at least) where the median of the others predicts it."""
    others = [median(np.delete(step_us, at)) for at in range(len(step_us))]
    return unseen_errors(step_us, np.array(others))


def unseen_errors(step_us: Floats, predicted_us: Floats) -> Floats:
    """The errors of predictions that have not seen the step; nan where either takes no time."""
    errors = np.full(len(step_us), np.nan)
    timed = (step_us > 0) & (predicted_us > 0)
    errors[timed] = np.log(step_us[timed] / predicted_us[timed])
    return errors


def unseen_step_interval(
    predicted_us: float, seen: Floats, prior: Prior = PRIOR
) -> tuple[float, float]:
    """90 % interval around a prediction whose errors on other steps are `seen`."""
    factor = exp(prior.bound(seen))
    return predicted_us / factor, predicted_us * factor
