"""A layout shaken out of a local optimum: a few tables laid out anew by chance, then improved."""

from __future__ import annotations

import numpy as np

from perfmodel.plan.improve import improved
from perfmodel.plan.pack import limits, room, sizes
from perfmodel.plan.problem import NO_KIND, Layout

FEWEST, MOST = 2, 5
"""Tables laid out anew at a time."""
WORSE_FRAC = 2e-3
"""A result that is worse by less is gone on from."""
SEED = 7


def shaken(layout: Layout, times: int) -> Layout:
    """The best layout found from `layout` by shaking it so many `times`; deterministic."""
    draw = np.random.default_rng(SEED)
    kinds = frozenset(layout.problem.choices.kind.tolist()) - {NO_KIND}
    best = here = layout
    for _ in range(times):
        start = _shuffled(here, draw)
        if start is None:
            continue
        found = improved(start, kinds)
        if found.step_us < best.step_us:
            best = found
        if found.step_us <= here.step_us * (1 + WORSE_FRAC):
            here = found
    return best


def _shuffled(layout: Layout, draw: np.random.Generator) -> Layout | None:
    """A few tables in ways drawn by chance, where there is room; None where there is none left."""
    problem, every = layout.problem, sizes(layout.problem)
    held = np.column_stack(list(layout.loads.values()))
    most = limits(problem)
    scale = np.where(np.isfinite(most), most, np.maximum(held.mean(axis=0), 1e-12))
    chosen, ranks = layout.chosen.copy(), list(layout.ranks)
    count = min(int(draw.integers(FEWEST, MOST + 1)), problem.tables)
    tables = draw.choice(problem.tables, count, replace=False).tolist()
    for number in tables:
        held[list(ranks[number])] -= every[chosen[number]]
    for number in tables:
        drawn = int(draw.choice(problem.of_table[number]))
        for choice in (drawn, int(chosen[number])):
            reach, parts = int(problem.choices.reach[choice]), int(problem.choices.parts[choice])
            where = room(problem, held, every[choice], reach, parts, scale)
            if where is not None:
                break
        else:
            return None
        chosen[number], ranks[number] = choice, tuple(sorted(where.tolist()))
        held[where] += every[choice]
    return Layout(problem, chosen, tuple(ranks))
