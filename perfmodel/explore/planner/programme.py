"""The planner's problem as a linear programme, in fractions or in whole numbers, and its bound."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.explore.planner.problem import EVERY, GROUP, HBM, Problem

RUNTIME = None if os.name == "posix" else "ucrtbase"
"""The C library whose standard output is flushed."""
_ONE_AT_A_TIME = Lock()


@dataclass
class Rows:
    """Constraints low <= A x <= high, as triplets."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, columns: Ints, values: Floats, low: float, high: float) -> None:
        """The sum of `values` times `columns` lies between `low` and `high`."""
        self.row += [len(self.low)] * len(columns)
        self.column += columns.tolist()
        self.value += values.tolist()
        self.low.append(low)
        self.high.append(high)

    def at_most(self, column: int, columns: Ints, values: Floats, more: float = 0.0) -> None:
        """The sum of `values` times `columns`, and `more`, is at most what stands in `column`."""
        self.add(np.append(columns, column), np.append(values, -1.0), -np.inf, -more)


def solve(
    rows: Rows, cost: Floats, lower: Floats, upper: Floats, whole: Floats, *, nodes: int, gap: float
) -> Any:
    """SciPy's answer: the least sum of columns times `cost` within all rows and bounds, columns in
    whole numbers where `whole` is 1.

    It ends after so many `nodes` of its search tree, never after a time: a plan must not depend on
    how fast the machine is.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    matrix = csr_array((rows.value, (rows.row, rows.column)), shape=(len(rows.low), len(upper)))
    with silenced_output():
        return milp(
            cost,
            constraints=LinearConstraint(matrix, rows.low, rows.high),
            integrality=whole,
            bounds=Bounds(lower, upper),
            options={"node_limit": nodes, "mip_rel_gap": gap},
        )


@contextmanager
def silenced_output() -> Iterator[None]:
    """Nothing that compiled code writes to standard output gets there.

    HiGHS 1.12, SciPy's solver, prints a line of its own whenever it repairs a solution in whole
    numbers, whatever its options say (ERGO-Code/HiGHS issue 2783).
    """
    with _ONE_AT_A_TIME:
        runtime = ctypes.CDLL(RUNTIME)
        try:
            kept = os.dup(1)
        except OSError:
            yield
            return
        try:
            runtime.fflush(None)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            yield
        finally:
            runtime.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)


GAP_FRAC = 1e-3
"""The search ends where its best solution is so near its bound."""
W, V, FORWARD, BACKWARD, STEP, EVERYWHERE = range(6)
"""Columns before the choices: W, V, both exposed exchanges, the step, and the work of shards that
all ranks hold."""


@dataclass(frozen=True)
class Places:
    """Where shards of choices may be, one entry per choice and place: in cells of ranks."""

    choice: Ints
    cells: list[tuple[int, ...]]
    shards: Floats
    """Of one unit, per rank of these cells, on average."""
    units: Floats
    """That make the whole choice."""
    most: Floats
    """Units that the place takes."""

    @classmethod
    def of(cls, problem: Problem, cell: int) -> Places:
        """Of all choices in turn, in cells of so many ranks."""
        count, parts = problem.ranks // cell, problem.parts
        per_group = max(problem.linked // cell, 1)
        groups = [tuple(range(at, at + per_group)) for at in range(0, count, per_group)]
        found: list[tuple[int, tuple[int, ...], float, float, float]] = []
        for choice, reach in enumerate(problem.reach.tolist()):
            if reach == EVERY:
                found.append((choice, tuple(range(count)), 1.0, 1.0, 1.0))
            elif reach == GROUP:
                share = min(problem.linked / cell, 1.0)
                found += [(choice, group, share, 1.0, 1.0) for group in groups]
            else:
                units = float(parts[choice])
                most = min(float(cell), units)
                found += [(choice, (each,), 1.0 / cell, units, most) for each in range(count)]
        chosen, cells, *numbers = zip(*found, strict=True)
        return cls(np.array(chosen), list(cells), *map(np.array, numbers))


@dataclass(frozen=True)
class Solution:
    """What a programme found: no layout takes less than `bound_us`."""

    bound_us: float
    work_us: float
    sent_us: float
    share: Floats
    """Of each choice of the problem, 0 to 1."""
    placed: list[tuple[int, tuple[int, ...]]]
    """Choices and the cells of their shards, where these are whole numbers."""


def best_of(
    problem: Problem,
    cell: int,
    *,
    nodes: int = 0,
    shard_us: float = 0.0,
) -> Solution | None:
    """The least step of all layouts, with the ranks in cells of `cell`, whose loads are averaged;
    None where none is found.

    Without `nodes`, choices may be split in fractions. `shard_us` is added for each single shard.

    Of a cell some rank has at least the mean; any rank with a shard has that and what all hold.
    """
    places = Places.of(problem, cell)
    at = EVERYWHERE + 1 + np.arange(len(problem.ways))
    kind_at = at[-1] + 1 + np.arange(len(problem.fixed_us))
    place_at = at[-1] + 1 + len(kind_at) + np.arange(len(places.choice))
    total = int(at[-1]) + 1 + len(kind_at) + len(place_at)
    rows = Rows()
    starts = np.searchsorted(places.choice, np.arange(1, len(problem.ways)))
    for choice, members in enumerate(np.split(np.arange(len(places.choice)), starts)):
        columns = np.append(place_at[members], at[choice])
        values = np.append(np.ones(len(members)), -places.units[members[0]])
        rows.add(columns, values, 0.0, 0.0)
    everywhere = np.where(problem.reach == EVERY, problem.work_us, 0.0)
    rows.at_most(EVERYWHERE, at, everywhere)
    for each in problem.of_table:
        rows.add(at[each], np.ones(len(each)), 1.0, 1.0)
        if cell > 1:
            alone = np.append((problem.work_us - everywhere)[each], 1.0)
            rows.at_most(W, np.append(at[each], EVERYWHERE), alone)
            rows.at_most(V, at[each], problem.sent_us[each])
        for kind, column in enumerate(kind_at.tolist()):
            needing = each[problem.kind[each] == kind]
            if len(needing):
                rows.at_most(column, at[needing], np.ones(len(needing)))
    _add_loads(rows, problem, places, place_at, cell)
    _add_steps(rows, problem, at, kind_at)
    lower, upper = np.zeros(total), np.full(total, np.inf)
    upper[at] = ~problem.too_large
    upper[place_at] = places.most
    whole = np.full(total, float(nodes > 0))
    whole[: EVERYWHERE + 1] = 0.0
    cost = np.zeros(total)
    cost[STEP] = 1.0
    cost[at] = shard_us * problem.single_shards
    found = solve(rows, cost, lower, upper, whole, nodes=nodes, gap=GAP_FRAC)
    if found.x is None:
        return None
    used = np.flatnonzero(found.x[place_at] > 0.5).tolist() if nodes else []
    placed = [(int(places.choice[each]), places.cells[each]) for each in used]
    bound_us = float((found.mip_dual_bound if nodes else found.fun) or 0.0)
    return Solution(bound_us, float(found.x[W]), float(found.x[V]), found.x[at], placed)


def _add_loads(rows: Rows, problem: Problem, places: Places, place_at: Ints, cell: int) -> None:
    """What each cell has of work, exchange and memory."""
    ahead_us = problem.held()[:, 0].reshape(-1, cell).mean(axis=1)
    of_cell: list[list[int]] = [[] for _ in ahead_us]
    for place, cells in enumerate(places.cells):
        for each in cells:
            of_cell[each].append(place)
    for members, ahead in zip(of_cell, ahead_us.tolist(), strict=True):
        here = np.array(members, np.int64)
        who, share = places.choice[here], places.shards[here]
        rows.at_most(W, place_at[here], problem.work_us[who] * share, ahead)
        rows.at_most(V, place_at[here], problem.sent_us[who] * share)
        for at, most in enumerate(problem.room_bytes, HBM):
            values = problem.sizes[who, at] * share
            if np.isfinite(most) and values.any():
                rows.add(place_at[here], values / most, -np.inf, 1.0)


def _add_steps(rows: Rows, problem: Problem, at: Ints, kind_at: Ints) -> None:
    """The step is at least what computing, and what communicating, takes."""
    it = problem.beside
    fixed = np.array(problem.fixed_us, np.float64)
    columns = np.concatenate([[V], at, kind_at]).astype(np.int64)
    exchange = np.concatenate([[1.0], problem.shared_us, fixed])
    shares = (problem.forward_frac, 1 - problem.forward_frac)
    for column, share, least in zip((FORWARD, BACKWARD), shares, it.bottom_us, strict=True):
        rows.add(np.array([column]), np.ones(1), least, np.inf)
        rows.at_most(column, columns, share * exchange)
    compute = np.array([W, FORWARD, BACKWARD, STEP])
    rows.add(compute, np.array([1.0, 1.0, 1.0, -1.0]), -np.inf, -it.dense_us)
    summed = np.concatenate([[1.0], problem.shared_us + problem.summed_us, fixed])
    rows.at_most(STEP, columns, summed, it.reduced_us + it.top_us)
