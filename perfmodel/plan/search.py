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
MOST_IMPROVED, IMPROVED_SHARDS = 4, 2000
"""Layouts that are improved, at most; where tables are few, as many as have so many tables."""


def search(problem: Problem) -> list[Layout]:
    """Layouts that fit, the best first; a proven one alone."""
    best = exact(problem)
    return [best] if best is not None else searched(problem)


def searched(problem: Problem) -> list[Layout]:
    """The same without the exact search."""
    starts = sorted(_starts(problem), key=lambda each: each.step_us)
    most = max(MOST_IMPROVED, IMPROVED_SHARDS // problem.tables)
    return sorted((improved(each) for each in starts[:most]), key=lambda each: each.step_us)


def _starts(problem: Problem) -> list[Layout]:
    """Packed layouts of what the averaged programme takes most of, per set of exchanges."""
    kinds = sorted(set(problem.choices.kind.tolist()) - {NO_KIND})
    sets = [frozenset(own) for size in range(len(kinds) + 1) for own in combinations(kinds, size)]
    found: dict[bytes, Layout | None] = {}
    for own, room in product(sets, ROOM):
        averaged = bound(replace(problem, hbm_bytes=problem.hbm_bytes * room), own)
        if averaged is None:
            continue
        for largest in LARGEST:
            chosen = _chosen(problem, averaged, largest)
            if chosen.tobytes() not in found:
                found[chosen.tobytes()] = packed(problem, chosen)
    return [layout for layout in found.values() if layout is not None]


def _chosen(problem: Problem, averaged: Bound, largest: float) -> Ints:
    """Per table the choice with most of its share among those whose shards are small enough."""
    choices = problem.choices
    load = np.maximum(_over(choices.work_us, averaged.work_us), 0.0)
    load = np.maximum(load, _over(choices.sent_us, averaged.sent_us))
    taken = load * choices.parts / problem.ranks
    taken = taken + _over(choices.shared_us + choices.summed_us, averaged.step_us)
    taken = taken + choices.hbm_bytes / problem.hbm_bytes * choices.parts / problem.ranks
    score = averaged.share - 1e-3 * taken / max(float(taken.max()), 1e-12)
    score = np.where(load <= largest, score, -1.0 - load)
    return np.array([own[score[own].argmax()] for own in problem.of_table])


def _over(values: Floats, unit: float) -> Floats:
    return values / unit if unit > 0 else np.zeros_like(values)
