"""Choices onto ranks: the largest first, each where the fullest measure stays lowest."""

from __future__ import annotations

import numpy as np

from perfmodel.plan.problem import ANY, EVERY, MEMORIES, Floats, Ints, Layout, Problem

MEASURES = ("work_us", "sent_us", *MEMORIES)


def sizes(problem: Problem) -> Floats:
    """Per choice what one shard takes of each of `MEASURES`, `[choices, measures]`."""
    return np.column_stack([getattr(problem.choices, name) for name in MEASURES])


def limits(problem: Problem) -> Floats:
    """What a rank may have of each."""
    return np.array([np.inf, np.inf, *(getattr(problem, name) for name in MEMORIES)])


def packed(problem: Problem, chosen: Ints) -> Layout | None:
    """A layout with these choices; a table that fits nowhere takes its choice with the smallest
    shards that does. None where that fails too, whether the largest or the fullest go first, and
    with as little in device memory as may be.
    """
    every = sizes(problem)
    parts = problem.choices.parts
    mean = (every[chosen] * parts[chosen, None]).sum(axis=0) / problem.ranks
    most = limits(problem)
    scale = np.where(np.isfinite(most), most, np.maximum(mean, 1e-12))
    for start in (chosen, _frugal(problem, chosen)):
        full = every[start] / scale
        for weight in (full.max(axis=1), full[:, 2:].max(axis=1)):
            found = _dealt(problem, start.copy(), every, scale, weight)
            if found is not None:
                return found
    return None


def _frugal(problem: Problem, chosen: Ints) -> Ints:
    """Per table the choice of the same sharding that takes least device memory."""
    choices = problem.choices
    kinds = np.array(choices.sharding, object)
    found = chosen.copy()
    for number, own in enumerate(problem.of_table):
        same = own[
            (kinds[own] == kinds[chosen[number]])
            & (choices.parts[own] == choices.parts[chosen[number]])
        ]
        found[number] = same[choices.hbm_bytes[same].argmin()]
    return found


def _dealt(
    problem: Problem, chosen: Ints, every: Floats, scale: Floats, weight: Floats
) -> Layout | None:
    choices = problem.choices
    held = np.zeros((problem.ranks, len(MEASURES)))
    ranks: list[tuple[int, ...]] = [()] * len(chosen)
    for number in np.lexsort((-weight, -choices.reach[chosen])).tolist():
        own = problem.of_table[number]
        smaller = own[np.argsort(every[own, 2:].sum(axis=1), kind="stable")]
        for choice in (int(chosen[number]), *smaller.tolist()):
            reach, parts = int(choices.reach[choice]), int(choices.parts[choice])
            where = room(problem, held, every[choice], reach, parts, scale)
            if where is not None:
                break
        else:
            return None
        chosen[number] = choice
        held[where] += every[choice]
        ranks[number] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def room(
    problem: Problem, held: Floats, size: Floats, reach: int, parts: int, scale: Floats
) -> Ints | None:
    """The ranks for `parts` shards of `size` beside what is `held` `[ranks, measures]`, or None."""
    after = held + size
    fits = (after <= limits(problem) * (1 + 1e-12)).all(axis=1)
    level = (after / scale).max(axis=1) + 1e-3 * (after / scale).sum(axis=1)
    level = np.where(fits, level, np.inf)
    if reach == EVERY:
        return np.arange(problem.ranks) if fits.all() else None
    if reach != ANY:
        fullest = level.reshape(problem.groups, problem.linked).max(axis=1)
        group = int(fullest.argmin())
        start = group * problem.linked
        return np.arange(start, start + problem.linked) if np.isfinite(fullest[group]) else None
    found = np.argsort(level, kind="stable")[:parts]
    return found if len(found) == parts and np.isfinite(level[found]).all() else None
