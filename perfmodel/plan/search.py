"""Layouts by search: choices from the averaged programme, packed onto ranks, then improved."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np

from perfmodel.plan.improve import improved
from perfmodel.plan.pack import packed
from perfmodel.plan.problem import NO_KIND, Floats, Ints, Layout, Problem
from perfmodel.plan.programme import Bound, bound, exact

ROOM = (1.0, 0.85)
"""Shares of device memory that the averaged programme may fill: packed whole, shards need some."""
LARGEST = (np.inf, 0.8, 0.5, 0.25)
"""Of the averaged busiest rank's load, what one shard may be: smaller ones pack closer."""
MOST_SETS, IMPROVED_SHARDS = 6, 1000
"""Sets of exchanges whose layouts are improved; of each set as many as have so many tables."""


def search(problem: Problem) -> list[Layout]:
    """Layouts that fit, the best first: the proven optimum where the problem is small, and the best
    found of each set of exchanges."""
    best = exact(problem)
    return [*([best] if best is not None else []), *searched(problem)]


def searched(problem: Problem) -> list[Layout]:
    """The best found of each set of exchanges, the best first; nothing proven."""
    sets = sorted(_starts(problem).items(), key=lambda each: each[1][0].step_us)
    tries = max(1, IMPROVED_SHARDS // problem.tables)
    found = []
    for kinds, starts in sets[:MOST_SETS]:
        better = (improved(each, kinds) for each in starts[:tries])
        found.append(min(better, key=lambda each: each.step_us))
    found.sort(key=lambda each: each.step_us)
    if not found:
        return []
    every = frozenset(problem.choices.kind.tolist())
    return sorted([improved(found[0], every), *found], key=lambda each: each.step_us)


def _starts(problem: Problem) -> dict[frozenset[int], list[Layout]]:
    """Per set of exchanges packed layouts, of what the averaged programme takes most of."""
    kinds = sorted(set(problem.choices.kind.tolist()) - {NO_KIND})
    sets = [
        frozenset(own) for size in range(1, len(kinds) + 1) for own in combinations(kinds, size)
    ]
    found: dict[frozenset[int], dict[bytes, Layout | None]] = {}
    for own, room in product(sets or [frozenset()], ROOM):
        averaged = bound(replace(problem, hbm_bytes=problem.hbm_bytes * room), own)
        if averaged is None:
            continue
        tried = found.setdefault(own, {})
        for largest in LARGEST:
            chosen = _chosen(problem, averaged, largest, own)
            if chosen.tobytes() not in tried:
                tried[chosen.tobytes()] = packed(problem, chosen)
    return {
        own: sorted(fit, key=lambda each: each.step_us)
        for own, tried in found.items()
        if (fit := [layout for layout in tried.values() if layout is not None])
    }


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
