"""Layouts by search: ways from a linear programme over averaged ranks, packed greedily, improved
two tables at a time; as placements; and a lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.problem import ANY, EVERY, HBM, HELD, SMOOTH, Layout, Problem
from perfmodel.embedding import Placement, RowCache, TablePlacement

LARGEST = (np.inf, 0.8, 0.5, 0.25)
"""Of the averaged busiest rank's load, what one shard may be: smaller ones pack closer."""
ROOM_FRACS = (1.0, 0.95, 0.85)
"""Of each memory, what tables may fill on average: whole shards leave gaps."""
ROUNDS, ROUNDS_OF_TABLE, LOSS_FRAC, SEED = 400, 4, 0.01, 1
"""How often two tables are laid out anew, of the best layout so often more per table; and the loss
that is taken at first."""


class Averaged(NamedTuple):
    """The best step with the loads of all ranks averaged and tables split among ways at will: no
    layout takes less than `bound_us`."""

    bound_us: float
    work_us: float
    sent_us: float
    share: Floats
    """Of each way of the problem, 0 to 1."""


def averaged(problem: Problem, room_frac: float = 1.0) -> Averaged | None:
    """By a linear programme, in `room_frac` of each memory; None where tables do not fit. The
    busiest rank has at least the mean, and what all ranks hold beside any one table's shard."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, hstack, vstack

    it, count, ways, heading = problem.beside, problem.tables, len(problem.ways), 8
    heads, shares, kinds, limits = [], [], [], []
    fixed = np.array(problem.fixed_us, np.float64)
    exchanged, of_sums = np.append(fixed[:-1], 0.0), np.append(0.0 * fixed[:-1], fixed[-1])
    table = np.repeat(np.arange(count), [len(own) for own in problem.of_table])
    way = np.concatenate(problem.of_table)
    of_table = coo_array((np.ones(ways), (table, way)), (count, ways)).tocsr()

    def at_most(
        head: dict[int, float],
        values: Floats | csr_array,
        limit: float = 0.0,
        of_kind: Floats | None = None,
    ) -> None:
        """Sums of `values` times shares of ways, of the columns of `head` and of kinds."""
        rows = csr_array(values.reshape(1, -1) if isinstance(values, np.ndarray) else values)
        number = rows.shape[0]
        first = np.zeros((number, heading))
        first[:, list(head)] = list(head.values())
        heads.append(first)
        shares.append(rows)
        kinds.append(np.tile(0.0 * fixed if of_kind is None else of_kind, (number, 1)))
        limits.extend([limit] * number)

    busiest, rows, keys, forward, backward, step, everywhere, even = range(heading)
    mean = problem.parts / problem.ranks
    least_us = problem.work_us - problem.first_us / np.maximum(problem.parts - 1, 1)
    on_all = np.where(problem.reach == EVERY, least_us, 0.0)
    at_most({everywhere: -1.0}, on_all)
    if problem.ranks > 1:
        alone = of_table * (problem.work_us + problem.first_us - on_all)[None, :]
        at_most({everywhere: 1.0, busiest: -1.0}, alone)
    at_most({even: -1.0}, problem.work_us * mean)
    at_most({even: 1.0, busiest: -1.0}, of_table * problem.scattered_us[None, :])
    for column, sent_us in zip((rows, keys), problem.sent_us, strict=True):
        at_most({column: -1.0}, sent_us * mean)
        at_most({column: -1.0}, of_table * sent_us[None, :])
    for at, most in enumerate(problem.room_bytes, HBM):
        if np.isfinite(most):
            at_most({}, problem.sizes[:, at] * mean / most, room_frac)
    for kind in range(len(fixed)):
        at_most({}, of_table * (problem.kind == kind)[None, :], 0.0, -np.eye(len(fixed))[kind])
    for column, part in ((forward, problem.forward_frac), (backward, 1 - problem.forward_frac)):
        of = {rows: part, keys: part, column: -1.0}
        at_most(of, part * problem.shared_us, 0.0, part * exchanged)
    shown = {forward: 1.0, backward: 1.0, step: -1.0}
    at_most({busiest: 1.0, **shown}, np.zeros(ways), -it.dense_us)
    alone = problem.summed_us + (1 - problem.forward_frac) * problem.replicas_us
    at_most({busiest: problem.forward_frac, **shown}, alone, -it.dense_us, of_sums)
    together = problem.shared_us + problem.summed_us
    at_most({rows: 1.0, keys: 1.0, step: -1.0}, together, -it.reduced_us - it.top_us, fixed)
    bounds = np.zeros((heading + ways + len(fixed), 2))
    bounds[:, 1] = np.inf
    bounds[[forward, backward], 0] = it.bottom_us
    bounds[heading : heading + ways, 1] = ~problem.too_large
    found = linprog(
        [float(at == step) for at in range(len(bounds))],
        A_ub=hstack([csr_array(np.vstack(heads)), vstack(shares), csr_array(np.vstack(kinds))]),
        b_ub=limits,
        A_eq=hstack([csr_array((count, heading)), of_table, csr_array((count, len(fixed)))]),
        b_eq=np.ones(count),
        bounds=bounds,
        method="highs",
    )
    if found.x is None:
        return None
    shares_of = found.x[heading : heading + ways]
    return Averaged(float(found.fun), found.x[busiest], found.x[rows] + found.x[keys], shares_of)


def lower_bound(problem: Problem) -> float:
    """Microseconds that no layout of the problem goes below; zero where nothing is proven."""
    found = averaged(problem)
    return 0.0 if found is None else found.bound_us


def search(problem: Problem) -> list[Layout]:
    """The best layouts found, the best first: what the averaged programme takes, packed; the same
    without each of its shardings; and what comes of improving them."""
    start = [packed] if (packed := packed_best(problem)) else []
    start += [each for layout in start for each in _fewer_shardings(layout)]
    found = sorted([*map(improved, start), *start], key=lambda layout: layout.step_us)
    return [*(improved(each, ROUNDS_OF_TABLE * problem.tables) for each in found[:1]), *found]


def improved(layout: Layout, rounds: int = ROUNDS) -> Layout:
    """The best layout found by taking two tables at a time out, one of a busiest rank, and putting
    them back where the step is least; a little loss is taken at first, to get out of dead ends.
    The same every time."""
    problem, draw = layout.problem, np.random.default_rng(SEED)
    ways = [own[~problem.too_large[own]] for own in problem.of_table]
    now, best = layout, layout
    now_us = problem.smooth_us(layout.held, layout.chosen)
    for turn in range(rounds):
        busiest = int(now.held[:, turn % HBM].argmax())
        near = [table for table, own in enumerate(now.ranks) if busiest in own]
        taken = {int(draw.choice(near or problem.tables)): None}
        taken[int(draw.integers(problem.tables))] = None
        tried = _put_back(now, list(taken), ways)
        if tried is None:
            continue
        tried_us = problem.smooth_us(tried.held, tried.chosen)
        if tried_us > now_us * (1 + LOSS_FRAC * (1 - turn / rounds)):
            continue
        now, now_us = tried, tried_us
        if now.fits and now.step_us < best.step_us:
            best = now
    return best


def _put_back(layout: Layout, taken: list[int], ways: list[Ints]) -> Layout | None:
    """The layout with `taken` tables, one after the other, in the best of their `ways`."""
    problem = layout.problem
    scale = np.full(HELD, np.inf)
    scale[:HBM] = np.maximum(layout.held[:, :HBM].max(axis=0), 1e-12)
    held, chosen, ranks = layout.held.copy(), layout.chosen.copy(), list(layout.ranks)
    for table in taken:
        held[list(ranks[table])] -= problem.taken(chosen[table])
    for table in taken:
        best_us, best = np.inf, None
        for choice in ways[table].tolist():
            where = room(problem, held, choice, scale)
            if where is None:
                continue
            after, chosen[table] = held.copy(), choice
            after[where] += problem.taken(choice)
            step_us = problem.smooth_us(after, chosen)
            if step_us < best_us:
                best_us, best = step_us, (choice, where, after)
        if best is None:
            return None
        chosen[table], where, held = best
        ranks[table] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def packed_best(problem: Problem) -> Layout | None:
    """The best packed layout of what averaged programmes take most of, if one fits: per table the
    way with most of its share among those whose shards are small enough."""
    fit, used, seen = [], np.inf, set[bytes]()
    per_rank = problem.parts / problem.ranks
    for frac in ROOM_FRACS:
        if used <= frac:  # the same programme again
            continue
        if (found := averaged(problem, frac)) is None:
            break
        filled = problem.sizes[:, HBM:] * (found.share * per_rank)[:, None]
        used = float((filled.sum(axis=0) / problem.limits[HBM:]).max())
        work_us, sent_us, bound_us = (
            each or np.inf for each in (found.work_us, found.sent_us, found.bound_us)
        )
        load = np.maximum(problem.work_us / work_us, problem.sent_us.sum(axis=0) / sent_us)
        taken = (load + problem.sizes[:, HBM] / problem.room_bytes[0]) * per_rank
        taken = taken + (problem.shared_us + problem.summed_us) / bound_us
        score = found.share - 1e-3 * taken / max(float(taken.max()), 1e-12)
        for largest in LARGEST:
            small = np.where(load <= largest, score, -1.0 - load)
            chosen = np.array([own[small[own].argmax()] for own in problem.of_table])
            if (key := chosen.tobytes()) not in seen:
                seen.add(key)
                fit += [layout] if (layout := pack(problem, chosen)) else []
    return min(fit, key=lambda each: each.step_us, default=None)


def pack(problem: Problem, chosen: Ints) -> Layout | None:
    """A layout with these ways; a table that fits nowhere takes its way with the smallest shards
    that does. None where that fails too, whether the largest or the fullest go first, and with all
    tables in their smallest shards."""
    limits = problem.limits
    mean = (problem.sizes[chosen] * problem.parts[chosen, None]).sum(axis=0) / problem.ranks
    scale = np.where(np.isfinite(limits), limits, np.maximum(mean, 1e-12))
    smallest = [own[problem.sizes[own, HBM:].sum(axis=1).argmin()] for own in problem.of_table]
    for start in (chosen, np.array(smallest)):
        full = problem.sizes[start] / scale
        for weight in (full.max(axis=1), full[:, HBM:].max(axis=1)):
            packed = _packed_in_order(problem, start.copy(), scale, weight)
            if packed is not None:
                return packed
    return None


def _packed_in_order(
    problem: Problem, chosen: Ints, scale: Floats, weight: Floats
) -> Layout | None:
    held = np.zeros((problem.ranks, HELD))
    ranks: list[tuple[int, ...]] = [()] * len(chosen)
    for number in np.lexsort((-weight, -problem.reach[chosen])).tolist():
        own = problem.of_table[number]
        smaller = own[np.argsort(problem.sizes[own, HBM:].sum(axis=1), kind="stable")]
        for choice in (int(chosen[number]), *smaller.tolist()):
            where = room(problem, held, choice, scale)
            if where is not None:
                break
        else:
            return None
        chosen[number] = choice
        held[where] += problem.taken(choice)
        ranks[number] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def room(problem: Problem, held: Floats, choice: int, scale: Floats) -> Ints | None:
    """The ranks for the shards of a way with what is `held` `[ranks, held]`, or None."""
    reach, parts = int(problem.reach[choice]), int(problem.parts[choice])
    after = held + problem.sizes[choice]
    fits = (after <= problem.limits * (1 + 1e-12)).all(axis=1)
    more = np.minimum(after / scale, 1e9) ** SMOOTH - np.minimum(held / scale, 1e9) ** SMOOTH
    level = np.where(fits, more.sum(axis=1), np.inf)
    if reach == EVERY:
        return np.arange(problem.ranks) if fits.all() else None
    if reach != ANY:
        fullest = level.reshape(-1, problem.linked).sum(axis=1)
        group = int(fullest.argmin())
        start = group * problem.linked
        return np.arange(start, start + problem.linked) if np.isfinite(fullest[group]) else None
    place = np.argsort(level, kind="stable")[:parts]
    return place if len(place) == parts and np.isfinite(level[place]).all() else None


def _fewer_shardings(layout: Layout) -> Iterator[Layout]:
    """The layout without each of its shardings, with the best other ways for those tables."""
    problem = layout.problem
    total = (problem.work_us + problem.sent_us.sum(axis=0)) * problem.parts / problem.ranks
    total = total + problem.shared_us + problem.summed_us
    used = dict.fromkeys(problem.sharding[layout.chosen].tolist())
    for name in used if len(used) > 1 else ():
        allowed: Mask = problem.sharding != name
        cost = np.where(allowed & ~problem.too_large, total, np.inf)
        chosen = layout.chosen.copy()
        for number in np.flatnonzero(~allowed[chosen]).tolist():
            own = problem.of_table[number]
            chosen[number] = own[cost[own].argmin()]
        packed = pack(problem, chosen) if allowed[chosen].all() else None
        if packed is not None and allowed[packed.chosen].all():
            yield packed


CACHE_NAME = "rows"


def placement_of(deployment: Deployment, layout: Layout) -> Placement:
    """The layout as a placement; tables outside device memory share one cache there."""
    cached_bytes = np.zeros(deployment.ranks)
    tables = []
    for choice, ranks in zip(layout.chosen.tolist(), layout.ranks, strict=True):
        way = layout.problem.ways[choice]
        is_cached = way.cached_frac > 0
        if is_cached:
            cached_bytes[list(ranks)] += way.bytes_in("hbm")
        names = (CACHE_NAME,) if is_cached else ()
        tables.append(TablePlacement(way.sharding, ranks, way.tier, way.dtype, caches=names))
    if not cached_bytes.any():
        return Placement(tuple(tables))
    resident = layout.held[:, HBM] - cached_bytes
    left_bytes = float(layout.problem.room_bytes[0] - resident.max())
    size = max(min(float(cached_bytes.max()), left_bytes), 1.0)
    return Placement(tuple(tables), (RowCache(CACHE_NAME, "hbm", size),))


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
