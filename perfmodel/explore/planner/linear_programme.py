"""The planner's problem as a linear programme, exact or averaged over ranks, and its solution."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.explore.planner.problem import ANY, EVERY, GROUP, MEMORIES, Layout, Problem

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

    def at_most(self, column: int, columns: Ints, values: Floats, beside: float = 0.0) -> None:
        """The sum of `values` times `columns`, and `beside`, is at most what stands in `column`."""
        self.add(np.append(columns, column), np.append(values, -1.0), -np.inf, -beside)


def solve(
    rows: Rows,
    goal: int,
    lower: Floats,
    upper: Floats,
    whole: Floats,
    *,
    nodes: int,
    gap_frac: float,
) -> Any:
    """SciPy's answer: the least value of column `goal` within all rows and bounds, columns in
    whole numbers where `whole` is 1.

    It ends after so many `nodes` of its search tree, never after a time: a plan must not depend on
    how fast the machine is.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    least = np.zeros(len(upper))
    least[goal] = 1.0
    matrix = csr_array((rows.value, (rows.row, rows.column)), shape=(len(rows.low), len(upper)))
    with silenced_output():
        return milp(
            least,
            constraints=LinearConstraint(matrix, rows.low, rows.high),
            integrality=whole,
            bounds=Bounds(lower, upper),
            options={"node_limit": nodes, "mip_rel_gap": gap_frac},
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


MAX_BINARIES = 240
"""Beyond so many, the exact search is not tried."""
MAX_NODES = 2_000
"""Nodes after which the exact search gives up: its layout is optimal where it ends before."""
EXACT_FRAC = 1e-9
"""What may be left between the exact search and its proof."""
W, V, FORWARD, BACKWARD, STEP, EVERYWHERE = range(6)
"""Columns of the programme before the choices: W, V, both shown exchanges, the step, and the work
of shards that all ranks hold."""


@dataclass(frozen=True)
class Bound:
    """The averaged answer: no layout takes less than `step_us`; W, V, each choice's share."""

    step_us: float
    work_us: float
    sent_us: float
    share: Floats


def bound(problem: Problem, kinds: frozenset[int] | None = None) -> Bound | None:
    """Ranks averaged, tables in fractions of choices; None where even that does not fit.

    W is at least the mean, and what any rank with a shard has: that, and the shards of all ranks.
    With `kinds`, these exchanges alone, each paid for; else each in proportion.
    """
    choices, ranks = problem.choices, problem.ranks
    count = len(choices)
    first = EVERYWHERE + 1
    at = first + np.arange(count)
    parts = choices.parts.astype(np.float64)
    rows = Rows()
    everywhere = np.where(choices.reach == EVERY, choices.work_us, 0.0)
    rows.at_most(EVERYWHERE, at, everywhere)
    for number in problem.of_table:
        rows.add(at[number], np.ones(len(number)), 1.0, 1.0)
        own = (choices.work_us - everywhere)[number]
        rows.at_most(W, np.append(at[number], EVERYWHERE), np.append(own, 1.0))
        rows.at_most(V, at[number], choices.sent_us[number])
    for column, values in ((W, choices.work_us), (V, choices.sent_us)):
        ahead = float(np.mean(problem.ahead_us)) if column == W and problem.ahead_us else 0.0
        rows.at_most(column, at, values * parts / ranks, ahead)
    for values, most in memories(problem):
        rows.add(at, values * parts / ranks / most, -np.inf, 1.0)
    kind_at = first + count + np.arange(len(problem.fixed_us))
    for kind, column in enumerate(kind_at.tolist()):
        for number in problem.of_table:
            own = number[choices.kind[number] == kind]
            if len(own) and kinds is None:
                rows.at_most(column, at[own], np.ones(len(own)))
    add_steps(rows, problem, at, choices.shared_us, choices.summed_us, kind_at)
    upper = np.full(first + count + len(kind_at), np.inf)
    upper[at] = ~problem.too_large
    lower = np.zeros(len(upper))
    if kinds is not None:
        is_out = (choices.kind >= 0) & ~np.isin(choices.kind, list(kinds))
        upper[at[is_out]] = 0.0
        lower[kind_at[list(kinds)]] = 1.0
    solution = solve(rows, STEP, lower, upper, np.zeros(len(upper)), nodes=0, gap_frac=0.0)
    if solution.x is None:
        return None
    return Bound(float(solution.fun), float(solution.x[W]), float(solution.x[V]), solution.x[at])


def exact(problem: Problem, most_us: float = np.inf) -> Layout | None:
    """The best layout of all, proven; None where the problem is too large, and where none takes
    `most_us` or less."""
    choices = problem.choices
    places = [_places(problem, reach) for reach in choices.reach.tolist()]
    counts = np.array([len(each) for each in places])
    if counts.sum() > MAX_BINARIES:
        return None
    first = EVERYWHERE + 1
    start = first + np.concatenate([[0], np.cumsum(counts)])
    kind_at = start[-1] + np.arange(len(problem.fixed_us))
    total = int(start[-1] + len(kind_at))
    ones = [np.arange(start[each], start[each + 1]) for each in range(len(choices))]
    needed = np.where(choices.reach == ANY, choices.parts, 1).astype(np.float64)
    rows = Rows()
    for own in problem.of_table:
        columns = np.concatenate([ones[each] for each in own])
        weights = np.concatenate([np.full(counts[each], 1 / needed[each]) for each in own])
        rows.add(columns, weights, 1.0, 1.0)
    split = [each for each in range(len(choices)) if needed[each] > 1]
    picked = total + np.arange(len(split))
    for each, column in zip(split, picked.tolist(), strict=True):
        columns = np.append(ones[each], column)
        rows.add(columns, np.append(np.ones(counts[each]), -needed[each]), 0.0, 0.0)
    for rank in range(problem.ranks):
        held = [
            (ones[each][place], each)
            for each, where in enumerate(places)
            for place, ranks in enumerate(where)
            if rank in ranks
        ]
        columns = np.array([column for column, _ in held])
        who = np.array([each for _, each in held])
        rows.at_most(
            W, columns, choices.work_us[who], problem.ahead_us[rank] if problem.ahead_us else 0.0
        )
        rows.at_most(V, columns, choices.sent_us[who])
        for values, most in memories(problem):
            rows.add(columns, values[who] / most, -np.inf, 1.0)
    for each, kind in enumerate(choices.kind.tolist()):
        for column in ones[each] if kind >= 0 else ():
            rows.add(np.array([column, kind_at[kind]]), np.array([1.0, -1.0]), -np.inf, 0.0)
    every = np.concatenate(ones)
    share = np.repeat(1 / needed, counts)
    each_of = np.repeat(np.arange(len(choices)), counts)
    shared, summed = choices.shared_us[each_of] * share, choices.summed_us[each_of] * share
    add_steps(rows, problem, every, shared, summed, kind_at)
    columns_total = total + len(split)
    upper = np.ones(columns_total)
    upper[:first] = np.inf
    upper[STEP] = most_us * (1 + EXACT_FRAC)
    whole = np.ones(columns_total)
    whole[:first] = 0.0
    lower = np.zeros(columns_total)
    solution = solve(rows, STEP, lower, upper, whole, nodes=MAX_NODES, gap_frac=EXACT_FRAC)
    if solution.status != 0:
        return None
    chosen, ranks = [], []
    for own in problem.of_table:
        taken = max(own.tolist(), key=lambda each: solution.x[ones[each]].sum() / needed[each])
        where = [places[taken][at] for at in np.flatnonzero(solution.x[ones[taken]] > 0.5)]
        chosen.append(taken)
        ranks.append(tuple(rank for group in where for rank in group))
    return Layout(problem, np.array(chosen), tuple(ranks))


def memories(problem: Problem) -> list[tuple[Floats, float]]:
    """What choices take of each memory that has an end, and how much there is."""
    limits = [(getattr(problem.choices, name), getattr(problem, name)) for name in MEMORIES]
    return [(values, most) for values, most in limits if np.isfinite(most) and most > 0]


def _places(problem: Problem, reach: int) -> list[tuple[int, ...]]:
    """The ranks that a choice may take, each with as many shards."""
    if reach == EVERY:
        return [tuple(range(problem.ranks))]
    size = problem.linked if reach == GROUP else 1
    return [tuple(range(at, at + size)) for at in range(0, problem.ranks, size)]


def add_steps(
    rows: Rows, problem: Problem, at: Ints, shared: Floats, summed: Floats, kind_at: Ints
) -> None:
    """The step is at least what computing, and what communicating, takes."""
    it = problem.beside
    fixed = np.array(problem.fixed_us, np.float64)
    columns = np.concatenate([[V], at, kind_at]).astype(np.int64)
    exchange = np.concatenate([[1.0], shared, fixed])
    shares = (problem.forward_frac, 1 - problem.forward_frac)
    for column, share, least in zip((FORWARD, BACKWARD), shares, it.bottom_us, strict=True):
        rows.add(np.array([column]), np.ones(1), least, np.inf)
        rows.at_most(column, columns, share * exchange)
    compute = np.array([W, FORWARD, BACKWARD, STEP])
    rows.add(compute, np.array([1.0, 1.0, 1.0, -1.0]), -np.inf, -it.dense_us)
    beside = np.concatenate([[1.0], shared + summed, fixed])
    rows.add(
        np.append(columns, STEP), np.append(beside, -1.0), -np.inf, -(it.reduced_us + it.top_us)
    )
