"""Layouts by search: choices from the averaged programme, packed greedily, improved a few tables at
a time, and by a programme in whole numbers over all tables where there are few; as placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.designs import Deployment
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.explore.planner.problem import (
    ANY,
    EVERY,
    HBM,
    HELD,
    SHARD_FRAC,
    SMOOTH,
    Layout,
    Problem,
)
from perfmodel.explore.planner.programme import Solution, best_of

LARGEST = (np.inf, 0.8, 0.5, 0.25)
"""Of the averaged busiest rank's load, what one shard may be: smaller ones pack closer."""
MAX_PLACES = 1_500
"""Of choices: beyond so many, all tables are not searched together."""
FEW_PLACES, FEW_NODES, NODES, AVERAGED_NODES, BOUND_NODES = 260, 2_000, 100, 100, 400
"""Of the trees of that search, of few places and of more, of the one over averaged ranks and of
the lower bound's, at most."""
ROUNDS, ROUNDS_OF_TABLE, LOSS_FRAC, SEED = 400, 4, 0.01, 1
"""How often two tables are laid out anew, of the best layout so often more per table; and the loss
that is taken at first."""
BOUND_COLUMNS = 4_000
"""Choices times groups of linked ranks; beyond so many, all ranks are averaged as one group."""


def search(problem: Problem) -> list[Layout]:
    """The best layouts found, the best first: what the programme over averaged ranks takes, in
    whole tables and in fractions, packed; that over all ranks where there are few places; the
    first of these without each of its shardings; and what comes of improving them."""
    averaged = (best_of(problem, problem.ranks, nodes=nodes) for nodes in (AVERAGED_NODES, 0))
    layouts = [layout for each in averaged for layout in _packed(problem, each)]
    start = [*_exact(problem, layouts), *layouts]
    names = problem.sharding
    for layout in start[:1]:
        used = dict.fromkeys(names[layout.chosen].tolist())
        start += filter(None, (_without(layout, names != name) for name in used if len(used) > 1))
    found = sorted([*map(improved, start), *start], key=lambda layout: layout.rated_us)
    return [*(improved(each, ROUNDS_OF_TABLE * problem.tables) for each in found[:1]), *found]


def _exact(problem: Problem, found: list[Layout]) -> list[Layout]:
    """The best of all layouts, or what a search by programme finds of it."""
    if problem.places > MAX_PLACES:
        return []
    shard_us = SHARD_FRAC / problem.tables * found[0].step_us if found else 0.0
    nodes = FEW_NODES if problem.places <= FEW_PLACES else NODES
    solution = best_of(problem, 1, nodes=nodes, shard_us=shard_us)
    if solution is None:
        return []
    return [_placed(problem, solution)]


def _placed(problem: Problem, solution: Solution) -> Layout:
    """The layout of a programme's answer over ranks."""
    chosen = np.zeros(problem.tables, np.int64)
    ranks: list[tuple[int, ...]] = [()] * problem.tables
    for choice, cells in solution.placed:
        table = int(problem.ways[choice].number)
        chosen[table] = choice
        ranks[table] += cells
    return Layout(problem, chosen, tuple(ranks))


def improved(layout: Layout, rounds: int = ROUNDS) -> Layout:
    """The best layout found by taking two tables at a time out, one of a busiest rank, and putting
    them back where the step is least; a little loss is taken at first, to get out of dead ends.
    The same every time."""
    problem, draw = layout.problem, np.random.default_rng(SEED)
    ways = [own[~problem.too_large[own]] for own in problem.of_table]
    now, now_us, best = layout, layout.smooth_us, layout
    for turn in range(rounds):
        busiest = int(now.held[:, turn % 2].argmax())
        near = [table for table, own in enumerate(now.ranks) if busiest in own]
        taken = {int(draw.choice(near or problem.tables)): None}
        taken[int(draw.integers(problem.tables))] = None
        tried = _put_back(now, list(taken), ways)
        limit_us = now_us * (1 + LOSS_FRAC * (1 - turn / rounds))
        if tried is None or tried.smooth_us > limit_us:
            continue
        now, now_us = tried, tried.smooth_us
        if now.fits and now.rated_us < best.rated_us:
            best = now
    return best


def _put_back(layout: Layout, taken: list[int], ways: list[Ints]) -> Layout | None:
    """The layout with `taken` tables, one after the other, in the best of their `ways`."""
    problem = layout.problem
    scale = np.full(HELD, np.inf)
    scale[:2] = np.maximum(layout.held[:, :2].max(axis=0), 1e-12)
    held, chosen, ranks = layout.held.copy(), layout.chosen.copy(), list(layout.ranks)
    for table in taken:
        held[list(ranks[table])] -= problem.sizes[chosen[table]]
    for table in taken:
        best_us, best = np.inf, None
        for choice in ways[table].tolist():
            where = room(problem, held, choice, scale)
            if where is None:
                continue
            after, chosen[table] = held.copy(), choice
            after[where] += problem.sizes[choice]
            step_us = problem.smooth_us(after, chosen)
            if step_us < best_us:
                best_us, best = step_us, (choice, where, after)
        if best is None:
            return None
        chosen[table], where, held = best
        ranks[table] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def packed_best(problem: Problem) -> Layout | None:
    """The best layout found by packing alone."""
    return next(iter(_packed(problem, best_of(problem, problem.ranks))), None)


def _packed(problem: Problem, averaged: Solution | None) -> list[Layout]:
    """The best packed layout of what the averaged programme takes most of, if one fits: per table
    the choice with most of its share among those whose shards are small enough."""
    if averaged is None:
        return []
    ranks = problem.ranks
    load = np.maximum(
        _over(problem.work_us, averaged.work_us), _over(problem.sent_us, averaged.sent_us)
    )
    taken = (load + problem.sizes[:, HBM] / problem.room_bytes[0]) * problem.parts / ranks
    taken = taken + _over(problem.shared_us + problem.summed_us, averaged.bound_us)
    score = averaged.share - 1e-3 * taken / max(float(taken.max()), 1e-12)
    chosen = {}
    for largest in LARGEST:
        small = np.where(load <= largest, score, -1.0 - load)
        best = np.array([own[small[own].argmax()] for own in problem.of_table])
        chosen[best.tobytes()] = best
    fit = [layout for each in chosen.values() if (layout := pack(problem, each))]
    return sorted(fit, key=lambda each: each.rated_us)[:1]


def _over(values: Floats, unit: float) -> Floats:
    return values / unit if unit > 0 else np.zeros_like(values)


def pack(problem: Problem, chosen: Ints) -> Layout | None:
    """A layout with these choices; a table that fits nowhere takes its choice with the smallest
    shards that does. None where that fails too, whether the largest or the fullest go first, and
    with as little in device memory as may be.
    """
    limits = problem.limits
    mean = (problem.sizes[chosen] * problem.parts[chosen, None]).sum(axis=0) / problem.ranks
    scale = np.where(np.isfinite(limits), limits, np.maximum(mean, 1e-12))
    kinds, smallest = problem.sharding, chosen.copy()
    for number, own in enumerate(problem.of_table):
        same = own[
            (kinds[own] == kinds[chosen[number]])
            & (problem.parts[own] == problem.parts[chosen[number]])
        ]
        smallest[number] = same[problem.sizes[same, HBM].argmin()]
    for start in (chosen, smallest):
        full = problem.sizes[start] / scale
        for weight in (full.max(axis=1), full[:, 2:].max(axis=1)):
            packed = _packed_in_order(problem, start.copy(), scale, weight)
            if packed is not None:
                return packed
    return None


def _packed_in_order(
    problem: Problem, chosen: Ints, scale: Floats, weight: Floats
) -> Layout | None:
    held = problem.held()
    ranks: list[tuple[int, ...]] = [()] * len(chosen)
    for number in np.lexsort((-weight, -problem.reach[chosen])).tolist():
        own = problem.of_table[number]
        smaller = own[np.argsort(problem.sizes[own, 2:].sum(axis=1), kind="stable")]
        for choice in (int(chosen[number]), *smaller.tolist()):
            where = room(problem, held, choice, scale)
            if where is not None:
                break
        else:
            return None
        chosen[number] = choice
        held[where] += problem.sizes[choice]
        ranks[number] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def room(problem: Problem, held: Floats, choice: int, scale: Floats) -> Ints | None:
    """The ranks for the shards of a choice with what is `held` `[ranks, held]`, or None."""
    reach, parts = int(problem.reach[choice]), int(problem.parts[choice])
    after = held + problem.sizes[choice]
    fits = (after <= problem.limits * (1 + 1e-12)).all(axis=1)
    more = np.minimum(after / scale, 1e9) ** SMOOTH - np.minimum(held / scale, 1e9) ** SMOOTH
    level = np.where(fits, more.sum(axis=1), np.inf)
    if reach == EVERY:
        return np.arange(problem.ranks) if fits.all() else None
    if reach != ANY:
        fullest = level.reshape(problem.groups, problem.linked).sum(axis=1)
        group = int(fullest.argmin())
        start = group * problem.linked
        return np.arange(start, start + problem.linked) if np.isfinite(fullest[group]) else None
    place = np.argsort(level, kind="stable")[:parts]
    return place if len(place) == parts and np.isfinite(level[place]).all() else None


def lower_bound(problem: Problem) -> float:
    """Microseconds that no layout of the problem goes below: which rank of a group of linked ranks
    has which shard is left open. Zero where the search proves nothing."""
    grouped = problem.groups > 1 and len(problem.ways) * problem.groups <= BOUND_COLUMNS
    cells = {problem.ranks, problem.linked if grouped else problem.ranks}
    found = (best_of(problem, cell, nodes=BOUND_NODES) for cell in cells)
    return max((each.bound_us for each in found if each), default=0.0)


def variations(layout: Layout) -> Iterator[Layout]:
    """Layouts near this one, those first that the surrogate takes for the best: without one of its
    shardings (a kind of exchange fewer to launch), then with one table of the busiest ranks laid
    out in another way."""
    problem = layout.problem
    names = problem.sharding
    used = dict.fromkeys(names[layout.chosen].tolist())
    fewer = [_without(layout, names != name) for name in used if len(used) > 1]
    yield from sorted((each for each in fewer if each), key=lambda each: each.rated_us)
    held, limits = layout.held, problem.limits
    scale = np.where(np.isfinite(limits), limits, held.mean(axis=0) + 1e-12)
    busiest = set(held[:, :2].argmax(axis=0).tolist())
    near = []
    for number, ranks in enumerate(layout.ranks):
        if not busiest & set(ranks):
            continue
        others = held.copy()
        others[list(ranks)] -= problem.sizes[layout.chosen[number]]
        for choice in problem.of_table[number].tolist():
            where = room(problem, others, choice, scale)
            if where is None:
                continue
            chosen, places = layout.chosen.copy(), list(layout.ranks)
            chosen[number], places[number] = choice, tuple(sorted(where.tolist()))
            near.append(replace(layout, chosen=chosen, ranks=tuple(places)))
    yield from sorted(near, key=lambda each: each.rated_us)


def _without(layout: Layout, allowed: Mask) -> Layout | None:
    """The layout with its other ways for tables that are laid out in one that is not allowed."""
    problem = layout.problem
    total = (problem.work_us + problem.sent_us) * problem.parts / problem.ranks
    total = total + problem.shared_us + problem.summed_us
    total = np.where(allowed & ~problem.too_large, total, np.inf)
    chosen = layout.chosen.copy()
    for number in np.flatnonzero(~allowed[chosen]).tolist():
        own = problem.of_table[number]
        chosen[number] = own[total[own].argmin()]
    packed = pack(problem, chosen) if allowed[chosen].all() else None
    return packed if packed is not None and allowed[packed.chosen].all() else None


CACHE_NAME = "rows"


def placement_of(deployment: Deployment, layout: Layout) -> Placement:
    """The layout as a placement; tables outside device memory share one cache there."""
    cached_bytes = np.zeros(deployment.ranks)
    tables = []
    for choice, ranks in zip(layout.chosen.tolist(), layout.ranks, strict=True):
        way = layout.problem.ways[choice]
        is_cached = way.tier != "hbm"
        if is_cached:
            cached_bytes[list(ranks)] += way.bytes_in("hbm")
        names = (CACHE_NAME,) if is_cached else ()
        tables.append(TablePlacement(way.sharding, ranks, way.tier, way.dtype, caches=names))
    if not cached_bytes.any():
        return Placement(tuple(tables))
    resident = layout.held[:, HBM] - cached_bytes
    room = float(layout.problem.room_bytes[0] - resident.max())
    size = max(min(float(cached_bytes.max()), room), 1.0)
    return Placement(tuple(tables), (RowCache(CACHE_NAME, "hbm", size, "set_associative"),))


def layout_of(problem: Problem, placement: Placement) -> Layout | None:
    """A placement in device memory as a layout, or None where it is none of the problem."""
    keys = [(way.number, way.sharding, way.tier, way.parts) for way in problem.ways]
    known = {key: at for at, key in enumerate(keys)}
    chosen = []
    for number, placed in enumerate(placement.tables):
        key = (number, placed.sharding, placed.tier, len(placed.ranks))
        if key not in known or placed.hot_rows or placed.caches:
            return None
        chosen.append(known[key])
    ranks = tuple(placed.ranks for placed in placement.tables)
    layout = Layout(problem, np.array(chosen), ranks)
    return layout if layout.fits else None
