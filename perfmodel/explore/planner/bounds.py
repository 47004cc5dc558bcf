"""A lower bound of all layouts; why none fits, and by how much."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.designs import Deployment
from perfmodel.explore.planner.linear_programme import (
    EVERYWHERE,
    STEP,
    Rows,
    V,
    W,
    add_steps,
    memories,
    solve,
)
from perfmodel.explore.planner.problem import ANY, EVERY, GROUP, MEMORIES, Layout, Problem
from perfmodel.explore.planner.surrogate import Surrogate
from perfmodel.units import BYTES_PER_GB

NAMES = dict(zip(MEMORIES, ("device", "host", "expansion", "drive"), strict=True))


def shortage(made: Surrogate, deployment: Deployment) -> str:
    """Why nothing fits: the largest part of a table, or all tables, and by how much."""
    problem, name = made.problem, deployment.workload.name
    where = f"{problem.ranks} x {deployment.machine.node.device.name}"
    for number, own in enumerate(problem.of_table):
        choices = problem.choices
        over = np.max(
            [getattr(choices, each)[own] - getattr(problem, each) for each in MEMORIES], axis=0
        )
        if over.min() > 0:
            return (
                f"{name}: tables[{number}]: its smallest part is {_gb(float(over.min()))} larger "
                f"than what any tier of a rank of {where} holds"
            )
    used = [each for each in MEMORIES if getattr(problem.choices, each).any()]
    shard = np.sum([getattr(problem.choices, name) for name in used], axis=0)
    whole = shard * problem.choices.parts
    needed = sum(float(whole[own].min()) for own in problem.of_table)
    each = float(sum(getattr(problem, name) for name in used))
    over_bytes = needed - each * problem.ranks
    if over_bytes > 0:
        memories = " and ".join(NAMES[name] for name in used) + " memory"
        return (
            f"{name}: its tables need {_gb(over_bytes)} more than the "
            f"{_gb(each * problem.ranks)} of {memories} that {where} have for tables"
        )
    return (
        f"{name}: its tables of {_gb(needed)} come near the {_gb(each * problem.ranks)} that "
        f"{where} have for tables, and no layout of whole parts was found"
    )


def _gb(count: float) -> str:
    return f"{count / BYTES_PER_GB:.3g} GB"


NODES, GAP_FRAC = 400, 1e-3
"""Of the search in whole choices: nodes at most, and the gap that ends it."""
MAX_COLUMNS = 4000
"""Choices times groups of linked ranks; beyond so many, all ranks are averaged as one group."""
MAX_WHOLE = 300
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
    grouped = problem.groups > 1 and len(problem.choices) * problem.groups <= MAX_COLUMNS
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
    whole[place[loose]] = place[loose].size <= MAX_WHOLE
    solution = solve(rows, STEP, np.zeros(total), upper, whole, nodes=NODES, gap_frac=GAP_FRAC)
    return float(solution.mip_dual_bound or 0.0)


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
    sizes = ordered[ranks : ranks * DEEPEST : ranks].tolist()
    least = np.sort(values[loose][values[loose] > 0])
    return sorted({each for each in (*sizes, *least[:1]) if each > 0})
