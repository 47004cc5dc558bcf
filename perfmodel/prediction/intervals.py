"""Intervals of steps: by Monte Carlo over models' errors, and from the errors of steps left out.

An error is the logarithm of a step over what the other steps predict of it. As few of them say
little, the scatter of other traces' steps counts as some more errors (Student's t distribution).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats, Ints, median, quantile
from perfmodel.ops.families import classes_of_kernels
from perfmodel.prediction.scheduled import ScheduledSteps
from perfmodel.prediction.transferred import HOST_SPREAD, RATIO_SPREAD, on_host
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import step_bounds
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    from perfmodel.prediction.types import Result

HOST = "host"
DRAWS = 64
COVERED_FRAC = 0.9
_ENDS = (1 - COVERED_FRAC) / 2, (1 + COVERED_FRAC) / 2
_NORMAL = NormalDist()
_Z_OF_BOUND = _NORMAL.inv_cdf(_ENDS[1])
"""The normal quantile that leaves 5 % above it."""
_MIN_US = 1e-9


def interval_of(step_us: float, draws_us: Floats) -> tuple[float, float]:
    """90 % of the draws of a step, and the step itself."""
    low, high = (quantile(draws_us, end) for end in _ENDS)
    return min(float(low), step_us), max(float(high), step_us)


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


def model_draws(step: Result, errors: ScheduledSteps, host_spread: tuple[float, float]) -> Floats:
    """A step that models timed under each of `DRAWS` of their errors, microseconds. `host_spread`:
    within which factors 90 % of host times lie.

    A draw moves all pieces of a family together, each within its own interval; families and the
    host are independent.
    """
    durations = errors.durations
    middle = np.maximum(durations.duration_us, _MIN_US)
    low = np.append(np.clip(durations.low_us / middle, _MIN_US, 1.0), host_spread[0])
    high = np.append(np.maximum(durations.high_us / middle, 1.0), host_spread[1])
    factors = _factors([*errors.families, HOST], low, high)
    return _drawn_us(step, factors, np.append(errors.piece, NONE))


def transfer_draws(step: Result, graph: ExecutionGraph) -> Floats:
    """A step that was transferred under each draw of the ratios between devices: all kernels of a
    class together, classes and the host independently, as of `model_draws`."""
    spread = {**RATIO_SPREAD, HOST: HOST_SPREAD, "": 1.0}
    kinds = list(spread)
    kind = np.full(len(graph) + 1, kinds.index(""))
    device = np.flatnonzero(graph.on_device)
    labels = [graph.labels[node] for node in device.tolist()]
    kind[device] = [kinds.index(name) for name in classes_of_kernels(labels)]
    kind[on_host(graph).nonzero()] = kinds.index(HOST)
    high = np.array(list(spread.values()))
    return _drawn_us(step, _factors(kinds, 1 / high, high), kind)


def _factors(kinds: list[str], low: Floats, high: Floats) -> Floats:
    """`[kinds, DRAWS]`: factors of times, 90 % of each row between its `low` and `high`. Normal
    errors, one in each of equal shares of the distribution, of rows of one kind in the same order,
    of others in another, which is the same in every process."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    errors = np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()]) / _Z_OF_BOUND
    orders = {kind: np.random.default_rng(zlib.crc32(kind.encode())) for kind in {*kinds}}
    draws = {kind: errors[order.permutation(DRAWS)] for kind, order in orders.items()}
    z = np.stack([draws[kind] for kind in kinds])
    factors: Floats = np.where(z < 0, low[:, None] ** -z, high[:, None] ** z)
    return factors


def _drawn_us(step: Result, factors: Floats, row: Ints) -> Floats:
    """The critical path with each of its nodes by the `factors` of its `row` (the last is that of
    what is no node), in proportion to the step; where the host's threads, one after the other, or a
    stream then have more to do in the step, as long as that."""
    path = [(each.node, each.duration_us) for each in step.critical_path]
    if not path or not step.step_us:
        return np.full(DRAWS, step.step_us)
    node, us = np.array(path).T
    drawn_us: Floats = us @ factors[row[node.astype(np.int64)]] * (step.step_us / us.sum())
    timeline, nodes = step.timeline, step.timeline.graph.nodes_
    begun_us, over_us = step_bounds(timeline, step.median_mark)
    inside = (timeline.start_us >= begun_us) & (timeline.start_us < over_us)
    rows = np.flatnonzero(inside & (nodes.rank == step.rank.rank))
    resource = np.where(timeline.graph.on_device[rows], nodes.resource[rows], NONE)
    for each in np.unique(resource):
        own = rows[resource == each]
        own_us = (timeline.end_us - timeline.start_us)[own]
        most = min(step.step_us / max(own_us.sum(), _MIN_US), 1.0)  # threads may run side by side
        drawn_us = np.maximum(drawn_us, own_us @ factors[row[own]] * most)
    return drawn_us


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


def student_quantile(freedom: float) -> float:
    """The bound that Student's t stays within."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, _ENDS[1]))


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
