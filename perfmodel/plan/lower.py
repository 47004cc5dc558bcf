"""A lower bound of all layouts: nodes apart, the ranks of each averaged, tables in one way each."""

from __future__ import annotations

import numpy as np

from perfmodel.plan.problem import ANY, EVERY, GROUP, Floats, Ints, Layout, Problem
from perfmodel.plan.programme import EVERYWHERE, STEP, V, W, add_steps, memories
from perfmodel.plan.solver import Rows, solved

NODES, GAP_FRAC = 400, 1e-3
"""Of the search in whole choices: nodes at most, and the gap that ends it."""
MOST_COLUMNS = 4000
"""Choices times groups of linked ranks; beyond so many, all ranks are averaged as one group."""
MOST_WHOLE = 300
"""Shards of a choice in a group are whole numbers where there are no more such columns."""
DEEPEST = 5
"""So many shards on one rank are counted, at most."""


def lower_bound(layout: Layout) -> float:
    """Microseconds that no layout of the problem goes below; the given one only says which sizes of
    shards are counted. Zero where the search proves nothing.

    Relaxed is which rank of a group has which shard. Of each group some rank has at least the mean,
    and at least `theta * ceil(mean(floor(load / theta)))` of its shards, for any size theta; any
    rank with a shard has that and what all ranks hold.
    """
    problem = layout.problem
    grouped = problem.groups > 1 and len(problem.choices) * problem.groups <= MOST_COLUMNS
    return max(_bound(layout, count) for count in {1, problem.groups if grouped else 1})


def _bound(layout: Layout, groups: int) -> float:
    problem, choices = layout.problem, layout.problem.choices
    size = problem.ranks // groups
    is_fixed = choices.reach == EVERY
    is_whole = (choices.reach == GROUP) & (groups > 1)
    loose = np.flatnonzero(~is_fixed & ~is_whole)
    at = EVERYWHERE + 1 + np.arange(len(choices))
    kind_at = at[-1] + 1 + np.arange(len(problem.fixed_us))
    in_group = kind_at[-1] + 1 if len(kind_at) else at[-1] + 1
    place = in_group + np.arange(len(choices) * groups).reshape(len(choices), groups)
    sizes = {W: _sizes(layout, choices.work_us, loose), V: _sizes(layout, choices.sent_us, loose)}
    counted = int(in_group + place.size)
    last = counted + groups * sum(map(len, sizes.values()))
    held_at = list(range(last, last + len(memories(problem))))
    total = last + len(held_at)

    rows = Rows()
    rows.at_most(EVERYWHERE, at, np.where(is_fixed, choices.work_us, 0.0))
    for number in np.flatnonzero(~is_fixed).tolist():
        parts = 1.0 if is_whole[number] else float(choices.parts[number])
        columns = np.append(place[number], at[number])
        rows.add(columns, np.append(np.ones(groups), -parts), 0.0, 0.0)
    _alone(rows, problem, at, kind_at, held_at)
    share = np.where(is_whole, 1.0, 1.0 / size)
    for group in range(groups):
        here = np.where(is_fixed, at, place[:, group])
        for column, values in {W: choices.work_us, V: choices.sent_us}.items():
            mean = np.where(is_fixed, values, values * share)
            rows.at_most(column, here, mean)
            for theta in sizes[column]:
                units = np.floor(values[loose] / theta * (1 + 1e-9)) / size
                rows.at_most(counted, here[loose], units)
                tied = np.flatnonzero(is_fixed | is_whole)
                load = np.append(values[tied], theta)
                rows.at_most(column, np.append(here[tied], counted), load)
                counted += 1
            tied = np.flatnonzero(is_whole)
            for choices_of in problem.of_table if groups > 1 else ():
                own = np.intersect1d(choices_of, loose)
                load = values[own] / np.minimum(choices.parts[own], size)
                both = np.concatenate([here[own], here[tied], [EVERYWHERE]])
                beside = [*values[tied], float(column == W)]
                rows.at_most(column, both, np.append(load, beside))
        for values, most in memories(problem):
            rows.add(here, np.where(is_fixed, values, values * share) / most, -np.inf, 1.0)
    add_steps(rows, problem, at, choices.shared_us, choices.summed_us, kind_at)

    upper, whole = np.full(total, np.inf), np.ones(total)
    upper[at] = ~problem.too_large
    upper[place[is_whole]] = 1.0
    upper[place[choices.reach == ANY]] = size
    whole[: EVERYWHERE + 1] = 0.0
    whole[held_at] = 0.0
    whole[place[loose]] = place[loose].size <= MOST_WHOLE
    found = solved(rows, STEP, np.zeros(total), upper, whole, nodes=NODES, gap_frac=GAP_FRAC)
    return float(found.mip_dual_bound or 0.0)


def _alone(rows: Rows, problem: Problem, at: Ints, kind_at: Ints, held_at: list[int]) -> None:
    """Each table in one way; a rank with one of its shards has that beside what all ranks hold; the
    kinds of exchange that it needs are paid for."""
    choices = problem.choices
    is_fixed, limited = choices.reach == EVERY, memories(problem)
    for (values, most), column in zip(limited, held_at, strict=True):
        rows.at_most(column, at, np.where(is_fixed, values / most, 0.0))
    for number in problem.of_table:
        rows.add(at[number], np.ones(len(number)), 1.0, 1.0)
        own = number[~is_fixed[number]]
        columns = np.append(at[own], EVERYWHERE)
        rows.at_most(W, columns, np.append(choices.work_us[own], 1.0))
        rows.at_most(V, at[own], choices.sent_us[own])
        for (values, most), column in zip(limited, held_at, strict=True):
            rows.add(np.append(at[own], column), np.append(values[own] / most, 1.0), -np.inf, 1.0)
        for kind, column in enumerate(kind_at.tolist()):
            needing = number[choices.kind[number] == kind]
            if len(needing):
                rows.at_most(column, at[needing], np.ones(len(needing)))


def _sizes(layout: Layout, values: Floats, loose: Ints) -> list[float]:
    """Sizes to count shards in: the smallest, and the largest that a rank has several of."""
    parts, ranks = layout.problem.choices.parts, layout.problem.ranks
    placed = layout.chosen[np.isin(layout.chosen, loose)]
    ordered = np.sort(np.repeat(values[placed], parts[placed]))[::-1]
    found = ordered[ranks : ranks * DEEPEST : ranks].tolist()
    least = np.sort(values[loose][values[loose] > 0])
    return sorted({each for each in (*found, *least[:1]) if each > 0})
