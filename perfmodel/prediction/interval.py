"""The interval of a step from those of its pieces, by Monte Carlo."""

from __future__ import annotations

import zlib
from statistics import NormalDist

import numpy as np

from perfmodel.attribution.path import Walker, critical_path
from perfmodel.ops.spec import Floats
from perfmodel.prediction.scheduled import Scheduled
from perfmodel.timeline.schedule import step_us_of_many
from perfmodel.trace.columns import NONE, Ints

HOST_HALF_FRAC = 0.15
"""assumed: half the 90 % interval of host time taken from another machine's profile."""
HOST = "host"
DRAWS = 64
COVERED_FRAC = 0.9
_NORMAL = NormalDist()
_Z_OF_BOUND = _NORMAL.inv_cdf((1 + COVERED_FRAC) / 2)
"""The normal quantile that leaves 5 % above it."""
MOST_NODES = 50_000
"""Of larger graphs the critical path alone is drawn, not scheduled anew."""
_SMALLEST_US = 1e-9


def step_interval(found: Scheduled, rank: int) -> tuple[float, float]:
    """90 % interval of a rank's median step, microseconds.

    The error of a family's model on a device is one for all its pieces, so each draw moves all
    pieces of a family together, each within its own interval; families, and the host, are drawn
    independently of one another. Every draw is scheduled, so that what decides the step may change;
    of a step that repeats, and of graphs above `MOST_NODES`, the critical path alone is drawn.
    """
    timeline = found.timeline
    marks = np.flatnonzero(timeline.graph.marks.rank == rank)
    if found.copies > 1 or len(timeline.graph) > MOST_NODES:
        steps = _of_path(found, marks)
    else:
        taken = timeline.end_us - timeline.start_us
        factor = _factors(found, np.arange(len(timeline.graph)))
        steps = np.median(step_us_of_many(timeline.graph, taken[:, None] * factor)[marks], axis=0)
    middle_us = float(np.median(timeline.step_us[marks]))
    low, high = np.quantile(steps, [(1 - COVERED_FRAC) / 2, (1 + COVERED_FRAC) / 2])
    return min(float(low), middle_us), max(float(high), middle_us)


def _of_path(found: Scheduled, marks: Ints) -> Floats:
    """Per draw the median step, what is on its critical path moved alone."""
    timeline = found.timeline
    step_us = timeline.step_us[marks]
    mark = int(marks[np.argsort(step_us)[len(marks) // 2]])
    path = critical_path(timeline, mark, Walker.of(timeline))
    nodes = np.array([part.node if part.edge == NONE else NONE for part in path])
    taken = np.array([part.end_us - part.start_us for part in path])
    moved: Floats = (taken[:, None] * _factors(found, nodes)).sum(axis=0)
    return moved


def _factors(found: Scheduled, nodes: Ints) -> Floats:
    """`[nodes, draws]`: by how much each draw multiplies what a node takes; -1 is no node, and
    counts as the host."""
    durations = found.durations
    middle = np.maximum(durations.duration_us, _SMALLEST_US)
    low = np.append(np.clip(durations.low_us / middle, _SMALLEST_US, 1.0), 1 - HOST_HALF_FRAC)
    high = np.append(np.maximum(durations.high_us / middle, 1.0), 1 + HOST_HALF_FRAC)
    names = [*found.families, HOST]
    kinds = list(dict.fromkeys(names))
    of_piece = np.array([kinds.index(name) for name in names])
    draws = np.stack([draws_of(kind) for kind in kinds])
    piece = np.where(nodes == NONE, NONE, found.built.piece[nodes])
    z = draws[of_piece[piece]]
    factor: Floats = np.where(z < 0, low[piece][:, None] ** -z, high[piece][:, None] ** z)
    return factor


def draws_of(kind: str) -> Floats:
    """Normal errors of one family, one in each of `DRAWS` equal shares of the distribution; -1 and
    1 are the bounds of the 90 % interval.

    The order is the family's own and the same in every process.
    """
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    errors = np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()]) / _Z_OF_BOUND
    return errors[np.random.default_rng(zlib.crc32(kind.encode())).permutation(DRAWS)]
