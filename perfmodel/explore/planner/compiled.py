"""Annealing of a layout, compiled by Numba: a million small changes in less than a second.

What is lowered is the step, with a mean of all ranks' loads that weighs the busy ones, and a price
of missing memory: so the search sees what is not the largest yet, and goes through layouts that do
not fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.explore.planner.problem import ANY, EVERY
from perfmodel.jit import compiled

BUSY = 2
"""The first measures, W and V: the step waits for their largest sums. Others are memories."""
HIDDEN, MISSING = 0.01, 0.3
"""Weights of the largest W and V where the step waits for something else, and, in steps, of memory
that is missing, as a share of a rank's."""
CHANGED, MOVED = 0.3, 0.6
"""Of all draws those that lay a table out in another way, and up to that those that move one shard;
the rest swap two."""
FULL, DRAWS = 1 + 1e-12, 1 << 30


class Ways(NamedTuple):
    """What may be chosen: `allowed[first[t]:first[t + 1]]` are the choices of table t, the other
    arrays are per choice."""

    first: Ints
    allowed: Ints
    kind: Ints
    reach: Ints
    parts: Ints
    size: Floats
    """Of one shard, `[choices, measures]`: microseconds of W and V, shares of each memory."""
    shared: Floats
    """`[choices, 2]`: what all exchange, sums of gradients."""


class Machine(NamedTuple):
    """Ranks, and the constants of a step's microseconds."""

    ranks: int
    linked: int
    evenness: float
    """Weight of the fourth-power means of W and V over ranks."""
    fixed_us: Floats
    dense_us: float
    forward_us: float
    backward_us: float
    beside_us: float
    forward_frac: float


class State(NamedTuple):
    """A layout: per table its choice and the ranks of its shards (of a group, the first), and what
    that adds up to; the last row of `held` is on all ranks."""

    chosen: Ints
    place: Ints
    held: Floats
    sums: Floats
    used: Ints


@compiled()
def _draw(random: Any, below: int) -> Any:
    """A whole number below `below`, by xorshift."""
    drawn = random[0]
    drawn ^= drawn << np.uint64(13)
    drawn ^= drawn >> np.uint64(7)
    drawn ^= drawn << np.uint64(17)
    random[0] = drawn
    return np.int64(np.float64(drawn >> np.uint64(11)) / 9007199254740992.0 * below)


@compiled()
def _put(ways: Ways, machine: Machine, state: State, choice: int, place: Ints, sign: float) -> None:
    """Adds the shards of a choice to the sums, or with -1 takes them away."""
    reach, measures = ways.reach[choice], ways.size.shape[1]
    count = machine.linked
    if reach == ANY:
        count = ways.parts[choice]
    elif reach == EVERY:
        count = 1
    for at in range(count):
        rank = place[0] + at
        if reach == ANY:
            rank = place[at]
        elif reach == EVERY:
            rank = machine.ranks
        for measure in range(measures):
            state.held[rank, measure] += sign * ways.size[choice, measure]
    state.sums[0] += sign * ways.shared[choice, 0]
    state.sums[1] += sign * ways.shared[choice, 1]
    if ways.kind[choice] >= 0:
        state.used[ways.kind[choice]] += np.int64(sign)


@compiled()
def _goal(machine: Machine, state: State) -> Any:
    """Missing memory, the step, and the step with the mean of all ranks."""
    held, every = state.held, state.held[machine.ranks]
    missing, work, sent, works, sents = 0.0, 0.0, 0.0, 0.0, 0.0
    for rank in range(machine.ranks):
        one, two = held[rank, 0] + every[0], held[rank, 1] + every[1]
        work, sent = max(work, one), max(sent, two)
        works += (one * one) ** 2
        sents += (two * two) ** 2
        for measure in range(BUSY, held.shape[1]):
            missing += max(held[rank, measure] + every[measure] - FULL, 0.0)
    exchange = sent + state.sums[0]
    for kind in range(len(machine.fixed_us)):
        if state.used[kind] > 0:
            exchange += machine.fixed_us[kind]
    shown = max(machine.forward_us, machine.forward_frac * exchange)
    shown += max(machine.backward_us, (1.0 - machine.forward_frac) * exchange)
    step = max(machine.dense_us + work + shown, exchange + state.sums[1] + machine.beside_us)
    step += HIDDEN * (work + exchange)
    even = np.sqrt(np.sqrt(works / machine.ranks)) + np.sqrt(np.sqrt(sents / machine.ranks))
    return missing, step, step + machine.evenness * even


@compiled()
def _proposed(
    ways: Ways, machine: Machine, state: State, random: Any, table: int, own: Ints, other: Ints
) -> Any:
    """A choice of `table` for the places `own`, and who swaps for the places `other`, or -1; a
    choice of -1 where the draw is no change."""
    chosen, place, ranks = state.chosen, state.place, machine.ranks
    what, new = _draw(random, DRAWS) / DRAWS, chosen[table]
    own[:] = place[table]
    if what < CHANGED or ways.reach[new] != ANY:
        first = ways.first[table]
        new = ways.allowed[first + _draw(random, ways.first[table + 1] - first)]
        if ways.reach[new] != ANY:
            own[0] = machine.linked * _draw(random, ranks // machine.linked)
            return new, -1
        for at in range(ways.parts[new]):
            own[at] = _emptier(state, random, ranks)
            while _is_in(own[at], own, at):
                own[at] = _emptier(state, random, ranks)
        return new, -1
    shard, partner = _draw(random, ways.parts[new]), -1
    target = _draw(random, ranks)
    if what >= MOVED:
        partner = _draw(random, len(chosen))
        second = chosen[partner]
        if ways.reach[second] != ANY or _is_in(own[shard], place[partner], ways.parts[second]):
            return -1, -1
        other[:] = place[partner]
        at = _draw(random, ways.parts[second])
        target = other[at]
        other[at] = own[shard]
    if _is_in(target, own, ways.parts[new]):
        return -1, -1
    own[shard] = target
    return new, partner


@compiled()
def _emptier(state: State, random: Any, ranks: int) -> Any:
    """Of two ranks the one that looks up less."""
    one, two = _draw(random, ranks), _draw(random, ranks)
    return one if state.held[one, 0] <= state.held[two, 0] else two


@compiled()
def _is_in(rank: int, places: Ints, count: int) -> Any:
    is_in = False
    for at in range(count):
        is_in |= places[at] == rank
    return is_in


@compiled()
def anneal_draws(
    ways: Ways, machine: Machine, state: State, draws: int, hot_us: float, cold_us: float, seed: int
) -> Any:
    """The best choices and places `[tables]`, `[tables, places]` that fit among `draws`, while the
    temperature falls from `hot_us` to `cold_us`; those given where there is none."""
    random = np.array([seed], np.uint64)
    chosen, place = state.chosen, state.place
    tables, width = place.shape
    for table in range(tables):
        _put(ways, machine, state, chosen[table], place[table], 1.0)
    own, other = np.zeros(width, np.int64), np.zeros(width, np.int64)
    missing, step, now = _goal(machine, state)
    best = step if missing == 0.0 else np.inf
    best_chosen, best_place = chosen.copy(), place.copy()
    temperature, cooling = hot_us, (cold_us / hot_us) ** (1.0 / draws)
    price = now * MISSING
    now += price * missing
    for _ in range(draws):
        temperature *= cooling
        table = _draw(random, tables)
        old = chosen[table]
        new, partner = _proposed(ways, machine, state, random, table, own, other)
        if new < 0:
            continue
        _put(ways, machine, state, old, place[table], -1.0)
        _put(ways, machine, state, new, own, 1.0)
        if partner >= 0:
            _put(ways, machine, state, chosen[partner], place[partner], -1.0)
            _put(ways, machine, state, chosen[partner], other, 1.0)
        missing, step, after = _goal(machine, state)
        after += price * missing
        luck = (_draw(random, DRAWS) + 1) / DRAWS
        if after <= now or luck < np.exp((now - after) / temperature):
            now = after
            chosen[table] = new
            place[table] = own
            if partner >= 0:
                place[partner] = other
            if missing == 0.0 and step < best:
                best = step
                best_chosen[:] = chosen
                best_place[:] = place
            continue
        if partner >= 0:
            _put(ways, machine, state, chosen[partner], other, -1.0)
            _put(ways, machine, state, chosen[partner], place[partner], 1.0)
        _put(ways, machine, state, new, own, -1.0)
        _put(ways, machine, state, old, place[table], 1.0)
    return best_chosen, best_place
