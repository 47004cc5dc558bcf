"""Layouts by search: choices from the averaged programme, packed, improved; as placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.designs import Deployment
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.explore.planner.anneal import (
    anneal_layout,
    limits,
    pack_choices,
    refine_layout,
    room,
    sizes,
)
from perfmodel.explore.planner.linear_programme import Bound, bound, exact
from perfmodel.explore.planner.problem import NO_KIND, Layout, Problem
from perfmodel.explore.planner.surrogate import Surrogate

LARGEST = (np.inf, 0.8, 0.5, 0.25)
"""Of the averaged busiest rank's load, what one shard may be: smaller ones pack closer."""
MAX_SETS = 6
"""Sets of exchanges of which the best packed layout is refined."""
HOPELESS = 1.1
"""A set whose lower bound is so many times the best step found is left out: the full schedule would
have to see it that differently."""


def search(problem: Problem) -> list[Layout]:
    """Layouts that fit, the best first; where the problem is small, the proven optimum is."""
    layouts = search_layouts(problem)
    best = exact(problem, layouts[0].step_us if layouts else np.inf)
    return layouts if best is None else [best, *layouts]


def search_layouts(problem: Problem) -> list[Layout]:
    """The best found, and the best with each set of exchanges, the best first; nothing proven."""
    layouts = _best_of_sets(problem)
    if not layouts:
        return []
    every = frozenset(problem.choices.kind.tolist())
    better = anneal_layout(layouts[0], every)
    best: dict[frozenset[int], Layout] = {}
    for each in sorted([better, *layouts], key=lambda each: each.step_us):
        best.setdefault(frozenset(problem.choices.kind[each.chosen].tolist()), each)
    return list(best.values())


def _best_of_sets(problem: Problem) -> list[Layout]:
    """The best layout found with each set of exchanges, the best first."""
    kinds = sorted(set(problem.choices.kind.tolist()) - {NO_KIND})
    sets = [
        frozenset(own) for size in range(1, len(kinds) + 1) for own in combinations(kinds, size)
    ]
    bounds = {own: each for own in sets or [frozenset()] if (each := bound(problem, own))}
    layouts: list[Layout] = []
    for own in sorted(bounds, key=lambda each: bounds[each].step_us)[:MAX_SETS]:
        best_us = min((each.step_us for each in layouts), default=np.inf)
        if bounds[own].step_us > HOPELESS * best_us:
            break
        start = _start(problem, own, bounds[own])
        layouts += [refine_layout(start, own)] if start else []
    return sorted(layouts, key=lambda each: each.step_us)


def _start(problem: Problem, kinds: frozenset[int], averaged: Bound) -> Layout | None:
    """The best packed layout of what the averaged programme takes most of."""
    chosen = {
        each.tobytes(): each for each in (_chosen(problem, averaged, m, kinds) for m in LARGEST)
    }
    packed = (pack_choices(problem, each) for each in chosen.values())
    fit = [layout for layout in packed if layout is not None]
    return min(fit, key=lambda each: each.step_us, default=None)


def _chosen(problem: Problem, averaged: Bound, largest: float, kinds: frozenset[int]) -> Ints:
    """Per table the choice with most of its share among those whose shards are small enough."""
    choices = problem.choices
    load = np.maximum(_over(choices.work_us, averaged.work_us), 0.0)
    load = np.maximum(load, _over(choices.sent_us, averaged.sent_us))
    taken = load * choices.parts / problem.ranks
    taken = taken + _over(choices.shared_us + choices.summed_us, averaged.step_us)
    taken = taken + choices.hbm_bytes / problem.hbm_bytes * choices.parts / problem.ranks
    score = averaged.share - 1e-3 * taken / max(float(taken.max()), 1e-12)
    score = np.where(load <= largest, score, -1.0 - load)
    score = np.where(problem.allowed(kinds), score, -np.inf)
    return np.array([own[score[own].argmax()] for own in problem.of_table])


def _over(values: Floats, unit: float) -> Floats:
    return values / unit if unit > 0 else np.zeros_like(values)


def variations(layout: Layout) -> Iterator[Layout]:
    """Layouts near this one, those first that the surrogate takes for the best: without one of its
    shardings (a kind of exchange fewer to launch), then with one table of the busiest ranks laid
    out in another way."""
    problem, choices = layout.problem, layout.problem.choices
    names = np.array(choices.sharding, object)
    used = dict.fromkeys(names[layout.chosen].tolist())
    fewer = [_without(layout, names != name) for name in used if len(used) > 1]
    yield from sorted((each for each in fewer if each), key=lambda each: each.step_us)
    every = sizes(problem)
    held = np.column_stack(list(layout.loads.values()))
    scale = np.where(np.isfinite(limits(problem)), limits(problem), held.mean(axis=0) + 1e-12)
    busiest = {int(held[:, measure].argmax()) for measure in range(2)}
    near = []
    for number, ranks in enumerate(layout.ranks):
        if not busiest & set(ranks):
            continue
        others = held.copy()
        others[list(ranks)] -= every[layout.chosen[number]]
        for choice in problem.of_table[number].tolist():
            reach, parts = int(choices.reach[choice]), int(choices.parts[choice])
            where = room(problem, others, every[choice], reach, parts, scale)
            if where is None:
                continue
            chosen, places = layout.chosen.copy(), list(layout.ranks)
            chosen[number], places[number] = choice, tuple(sorted(where.tolist()))
            near.append(replace(layout, chosen=chosen, ranks=tuple(places)))
    yield from sorted(near, key=lambda each: each.step_us)


def _without(layout: Layout, allowed: Mask) -> Layout | None:
    """The layout with its other ways for tables that are laid out in one that is not allowed."""
    problem, choices = layout.problem, layout.problem.choices
    total = (choices.work_us + choices.sent_us) * choices.parts / problem.ranks
    total = total + choices.shared_us + choices.summed_us
    total = np.where(allowed & ~problem.too_large, total, np.inf)
    chosen = layout.chosen.copy()
    for number in np.flatnonzero(~allowed[chosen]).tolist():
        own = problem.of_table[number]
        chosen[number] = own[total[own].argmin()]
    packed = pack_choices(problem, chosen) if allowed[chosen].all() else None
    if packed is None or not allowed[packed.chosen].all():
        return None
    better = refine_layout(packed, frozenset(choices.kind[packed.chosen].tolist()))
    return better if allowed[better.chosen].all() else packed


CACHE_NAME = "rows"


def placement_of(deployment: Deployment, made: Surrogate, layout: Layout) -> Placement:
    """The layout as a placement; tables outside device memory share one cache there."""
    cached_bytes = np.zeros(deployment.ranks)
    tables = []
    for choice, ranks in zip(layout.chosen.tolist(), layout.ranks, strict=True):
        way = made.ways[choice]
        is_cached = way.tier != "hbm"
        if is_cached:
            cached_bytes[list(ranks)] += way.hbm_bytes
        names = (CACHE_NAME,) if is_cached else ()
        tables.append(TablePlacement(way.sharding, ranks, way.tier, way.dtype, caches=names))
    if not cached_bytes.any():
        return Placement(tuple(tables))
    resident = layout.loads["hbm_bytes"] - cached_bytes
    room = float(made.problem.hbm_bytes - resident.max())
    size = max(min(float(cached_bytes.max()), room), 1.0)
    return Placement(tuple(tables), (RowCache(CACHE_NAME, "hbm", size, "set_associative"),))


def layout_of(made: Surrogate, placement: Placement) -> Layout | None:
    """A placement as a layout of the surrogate's choices, or None where it is none of them."""
    cached = _cached_frac(made, placement)
    known: dict[tuple[int, str, str, int], int] = {}
    for at, way in enumerate(made.ways):
        own = way.number, way.sharding, way.tier, way.parts
        before = made.ways[known[own]].cached_frac if own in known else np.inf
        if abs(way.cached_frac - cached) < abs(before - cached):
            known[own] = at
    chosen = []
    for number, placed in enumerate(placement.tables):
        key = (number, placed.sharding, placed.tier, len(placed.ranks))
        if key not in known or placed.hot_rows or (placed.caches and placed.tier == "hbm"):
            return None
        chosen.append(known[key])
    ranks = tuple(placed.ranks for placed in placement.tables)
    layout = Layout(made.problem, np.array(chosen), ranks)
    return layout if layout.fits else None


def _cached_frac(made: Surrogate, placement: Placement) -> float:
    """Of the fullest rank's tables outside device memory, what its caches there hold."""
    sizes = {way.number: way.hbm_bytes * way.parts for way in made.ways if way.tier == "hbm"}
    held = np.zeros(made.problem.ranks)
    for number, placed in enumerate(placement.tables):
        if placed.tier != "hbm":
            held[list(placed.ranks)] += sizes[number] / len(placed.ranks)
    room = sum(cache.capacity_bytes for cache in placement.caches if cache.at == "hbm")
    return min(room / float(held.max()), 1.0) if held.any() else 0.0
