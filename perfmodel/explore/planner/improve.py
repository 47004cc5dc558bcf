"""A layout made better: shards of the busiest ranks moved, swapped, or laid out in another way."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.explore.planner.anneal import limits, room, sizes
from perfmodel.explore.planner.problem import ANY, Layout, Problem

MOST_STEPS, MOST_CHANGES = 2000, 60
"""Moves and swaps, and changes of a table's choice, at most."""
GAIN = 1e-9
"""Smaller relative gains are none."""
HIDDEN = 0.01
"""Weight of W and E where the step waits for something else: the surrogate may be wrong there."""
EVENNESS = 1e-3
"""Weight of even loads beside the step itself: what decides between layouts with one maximum."""
BUSIEST = 2
"""W and V: the measures whose largest sums the step waits for."""


@dataclass
class _State:
    """Loads `[ranks, measures]` and the shards that may move."""

    problem: Problem
    chosen: Ints
    ranks: list[list[int]]
    held: Floats
    shared_us: float = 0.0
    summed_us: float = 0.0

    def settle(self) -> None:
        choices = self.problem.choices
        shared = float(choices.shared_us[self.chosen].sum())
        self.shared_us = shared + self.problem.needed_us(self.chosen)
        self.summed_us = float(choices.summed_us[self.chosen].sum())

    def goal(self, largest: Floats, squares: Floats) -> Floats:
        """Of largest sums and sums of squares of W and V, `[..., 2]`."""
        exchange = largest[..., 1] + self.shared_us
        step = self.problem.step_us(largest[..., 0], exchange, self.summed_us)
        spread = np.sqrt(squares / len(self.held)).sum(axis=-1)
        return np.asarray(step + HIDDEN * (largest[..., 0] + exchange) + EVENNESS * spread)

    @property
    def now(self) -> float:
        busy = self.held[:, :BUSIEST]
        return float(self.goal(busy.max(axis=0), (busy**2).sum(axis=0)))


Best: TypeAlias = tuple[float, tuple[int, int, int] | None]
"""The goal after a move, and the move: a shard, the one it is swapped with or -1, and where to."""


def improve_layout(layout: Layout, kinds: frozenset[int]) -> Layout:
    """The layout after all moves, swaps and changes that shorten its step, with no other kinds of
    exchange than `kinds`."""
    problem = layout.problem
    held = np.column_stack(list(layout.loads.values()))
    state = _State(problem, layout.chosen.copy(), [list(own) for own in layout.ranks], held)
    state.settle()
    allowed = problem.allowed(kinds)
    for _ in range(MOST_CHANGES):
        _move(state)
        if not _change(state, allowed):
            break
    return Layout(problem, state.chosen, tuple(tuple(sorted(own)) for own in state.ranks))


def _move(state: _State) -> None:
    """Moves and swaps of single shards, the best first, until none helps."""
    size = sizes(state.problem)[state.chosen]
    loose = state.problem.choices.reach[state.chosen] == ANY
    table = np.array([t for t, own in enumerate(state.ranks) for _ in own if loose[t]], np.int64)
    place = np.array([r for t, own in enumerate(state.ranks) for r in own if loose[t]], np.int64)
    if not len(table):
        return
    holds = np.zeros((len(state.ranks), state.problem.ranks), bool)
    holds[table, place] = True
    most = limits(state.problem) * (1 + 1e-12)
    for _ in range(MOST_STEPS):
        before = state.now
        best: Best = (before * (1 - GAIN), None)
        for measure in range(BUSIEST):
            rank = int(state.held[:, measure].argmax())
            own = np.flatnonzero(place == rank)
            if len(own):
                moves = _moves(state, size, table, own, rank, holds, most)
                swaps = _swaps(state, size, table, place, own, rank, holds, most)
                best = min(best, moves, swaps, key=itemgetter(0))
        if best[1] is None:
            return
        first, second, to = best[1]
        for shard, target in ((first, to), (second, int(place[first]))):
            if shard >= 0:
                source = int(place[shard])
                state.held[source] -= size[table[shard]]
                state.held[target] += size[table[shard]]
                holds[table[shard], source] = False
                holds[table[shard], target] = True
                held = state.ranks[table[shard]]
                held[held.index(source)] = target
                place[shard] = target


def _moves(
    state: _State, size: Floats, table: Ints, own: Ints, rank: int, holds: Mask, most: Floats
) -> Best:
    """The best rank for one of the shards `own` of `rank`."""
    delta = size[table[own]][:, None, :]
    targets = np.arange(len(state.held))
    allowed = ~holds[table[own]] & ((state.held + delta) <= most).all(axis=2)
    score = np.where(allowed, _after(state, rank, targets, -delta, delta), np.inf)
    at = int(score.argmin())
    shard, target = divmod(at, len(targets))
    return float(score.flat[at]), (int(own[shard]), -1, int(target))


def _swaps(
    state: _State,
    size: Floats,
    table: Ints,
    place: Ints,
    own: Ints,
    rank: int,
    holds: Mask,
    most: Floats,
) -> Best:
    """The best pair of a shard of `rank` and one elsewhere."""
    others = np.flatnonzero(place != rank)
    if not len(others):
        return np.inf, None
    delta = size[table[own]][:, None, :] - size[table[others]][None, :, :]
    allowed = ~holds[table[own]][:, place[others]] & ~holds[table[others], rank][None, :]
    fits = (state.held[place[others]] + delta <= most).all(axis=2)
    fits &= (state.held[rank] - delta <= most).all(axis=2)
    score = _after(state, rank, place[others], -delta, delta)
    score = np.where(allowed & fits, score, np.inf)
    at = int(score.argmin())
    first, second = divmod(at, len(others))
    return float(score.flat[at]), (int(own[first]), int(others[second]), int(place[others[second]]))


def _after(state: _State, rank: int, targets: Ints, lost: Floats, gained: Floats) -> Floats:
    """The goal where `rank` and each of `targets` change so, `[shards, targets]`."""
    busy = state.held[:, :BUSIEST]
    mine = busy[rank] + lost[..., :BUSIEST]
    theirs = busy[targets] + gained[..., :BUSIEST]
    rest = _without(busy, rank, targets)
    largest = np.maximum(np.maximum(mine, theirs), rest)
    squares = (busy**2).sum(axis=0) - busy[rank] ** 2 - busy[targets] ** 2
    return state.goal(largest, squares + mine**2 + theirs**2)


def _without(busy: Floats, rank: int, targets: Ints) -> Floats:
    """Largest sums of all ranks but `rank` and each target, `[targets, 2]`."""
    others = busy.copy()
    others[rank] = -np.inf
    if len(busy) == 1:
        return np.zeros((len(targets), BUSIEST))
    top = np.sort(others, axis=0)[-2:]
    is_top = busy[targets] == top[1]
    return np.asarray(np.maximum(np.where(is_top, top[0], top[1]), 0.0))


def _change(state: _State, allowed: Mask) -> bool:
    """Another choice for one table of the busiest ranks, where that helps."""
    problem = state.problem
    every = sizes(problem)
    busiest = {int(state.held[:, measure].argmax()) for measure in range(BUSIEST)}
    tables = [t for t, own in enumerate(state.ranks) if busiest & set(own)]
    before = state.now
    scale = np.where(
        np.isfinite(limits(problem)),
        limits(problem),
        np.maximum(state.held.mean(axis=0), 1e-12),
    )
    best: tuple[float, int, int, Ints | None] = (before * (1 - GAIN), -1, -1, None)
    for number in tables:
        old = int(state.chosen[number])
        without = state.held.copy()
        without[state.ranks[number]] -= every[old]
        for new in problem.of_table[number].tolist():
            reach, parts = int(problem.choices.reach[new]), int(problem.choices.parts[new])
            where = room(problem, without, every[new], reach, parts, scale)
            if new == old or where is None or not allowed[new]:
                continue
            after = without.copy()
            after[where] += every[new]
            chosen = state.chosen.copy()
            chosen[number] = new
            trial = _State(problem, chosen, state.ranks, after)
            trial.settle()
            if trial.now < best[0]:
                best = trial.now, number, new, where
    _, number, new, where = best
    if where is None:
        return False
    state.held[state.ranks[number]] -= every[state.chosen[number]]
    state.held[where] += every[new]
    state.chosen[number] = new
    state.ranks[number] = where.tolist()
    state.settle()
    return True
