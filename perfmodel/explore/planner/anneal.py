"""Choices packed onto ranks, and a layout annealed: changed a little at a time while it is hot."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.explore.planner.problem import ANY, EVERY, GROUP, MEMORIES, Layout, Problem

MEASURES = ("work_us", "sent_us", *MEMORIES)


def sizes(problem: Problem) -> Floats:
    """Per choice what one shard takes of each of `MEASURES`, `[choices, measures]`."""
    return np.column_stack([getattr(problem.choices, name) for name in MEASURES])


def limits(problem: Problem) -> Floats:
    """What a rank may have of each."""
    return np.array([np.inf, np.inf, *(getattr(problem, name) for name in MEMORIES)])


def pack_choices(problem: Problem, chosen: Ints) -> Layout | None:
    """A layout with these choices; a table that fits nowhere takes its choice with the smallest
    shards that does. None where that fails too, whether the largest or the fullest go first, and
    with as little in device memory as may be.
    """
    every = sizes(problem)
    parts = problem.choices.parts
    mean = (every[chosen] * parts[chosen, None]).sum(axis=0) / problem.ranks
    most = limits(problem)
    scale = np.where(np.isfinite(most), most, np.maximum(mean, 1e-12))
    for start in (chosen, _smallest_choices(problem, chosen)):
        full = every[start] / scale
        for weight in (full.max(axis=1), full[:, 2:].max(axis=1)):
            packed = _pack_in_order(problem, start.copy(), every, scale, weight)
            if packed is not None:
                return packed
    return None


def _smallest_choices(problem: Problem, chosen: Ints) -> Ints:
    """Per table the choice of the same sharding that takes least device memory."""
    choices = problem.choices
    kinds = np.array(choices.sharding, object)
    smallest = chosen.copy()
    for number, own in enumerate(problem.of_table):
        same = own[
            (kinds[own] == kinds[chosen[number]])
            & (choices.parts[own] == choices.parts[chosen[number]])
        ]
        smallest[number] = same[choices.hbm_bytes[same].argmin()]
    return smallest


def _pack_in_order(
    problem: Problem, chosen: Ints, every: Floats, scale: Floats, weight: Floats
) -> Layout | None:
    choices = problem.choices
    held = np.zeros((problem.ranks, len(MEASURES)))
    held[:, 0] = problem.ahead_us or 0.0
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
    place = np.argsort(level, kind="stable")[:parts]
    return place if len(place) == parts and np.isfinite(level[place]).all() else None


HOT_FRACS, COLD_FRAC = (2e-2, 2e-2, 1e-2, 5e-3, 2e-3), 3e-4
"""Temperatures of each annealing in turn, of the step: what a change for the worse may add. The
first ones start almost anew, the last ones refine what was best."""
EVENNESS = (6.0, 3.0, 3.0, 1.0, 0.1)
"""Of each, the weight of all ranks' mean load beside the largest."""
DRAWS, MAX_WORK, WORK_OF_DRAW = 20_000, 80_000_000, 80
"""Changes tried in each: per table; and of all, no more than so much work, in ranks added up, one
change being as much as these and the problem's."""
MEMORY = MEASURES.index(MEMORIES[0])
SEED = 88_172_645_463_325_252


def anneal_layout(layout: Layout, kinds: frozenset[int]) -> Layout:
    """The best layout found by annealing what was best before, with each temperature; never worse
    than `layout`, with no other kinds of exchange than `kinds`, and the same one every time."""
    best = layout
    for seed, how in enumerate(zip(HOT_FRACS, EVENNESS, strict=True)):
        annealed = _annealed(best, kinds, *how, SEED + seed)
        if annealed.fits and annealed.step_us < best.step_us:
            best = annealed
    return best


REFINING = (1e-4, 1.0, 1e-5)
"""Hot temperature, weight of the mean, cold temperature, that only mend what is there. Chosen on
random problems (seeds 10, 12, 14) and 1,000 tables on 128 GPUs."""


def refine_layout(layout: Layout, kinds: frozenset[int]) -> Layout:
    """The same with changes that cost next to nothing alone: a few moves and swaps more."""
    hot_frac, evenness, cold_frac = REFINING
    refined = _annealed(layout, kinds, hot_frac, evenness, SEED, cold_frac)
    return refined if refined.fits and refined.step_us < layout.step_us else layout


def _annealed(
    layout: Layout,
    kinds: frozenset[int],
    hot_frac: float,
    evenness: float,
    seed: int,
    cold_frac: float = COLD_FRAC,
) -> Layout:
    from perfmodel.explore.planner.compiled import Machine, State, Ways, anneal_draws

    problem, choices, it = layout.problem, layout.problem.choices, layout.problem.beside
    allowed = problem.allowed(kinds) & ~problem.too_large
    own = [each[allowed[each]] for each in problem.of_table]
    is_loose = choices.reach == ANY
    width = int(choices.parts[is_loose].max(initial=1))
    place = np.zeros((problem.tables, width), np.int64)
    for table, (choice, ranks) in enumerate(zip(layout.chosen, layout.ranks, strict=True)):
        count = int(choices.parts[choice]) if is_loose[choice] else 1
        place[table, :count] = ranks[:count]
    size = _shares(problem)
    held = np.zeros((problem.ranks + 1, size.shape[1]))
    held[:-1, 0] = problem.ahead_us or 0.0
    chosen, places = anneal_draws(
        Ways(
            np.cumsum([0, *map(len, own)]),
            np.concatenate(own),
            choices.kind,
            choices.reach,
            choices.parts,
            size,
            np.column_stack([choices.shared_us, choices.summed_us]),
        ),
        Machine(
            problem.ranks,
            problem.linked,
            evenness,
            np.array(problem.fixed_us, np.float64),
            it.dense_us,
            *it.bottom_us,
            it.top_us + it.reduced_us,
            problem.forward_frac,
        ),
        State(
            layout.chosen.astype(np.int64),
            place,
            held,
            np.zeros(2),
            np.zeros(len(problem.fixed_us), np.int64),
        ),
        min(DRAWS * problem.tables, MAX_WORK // (WORK_OF_DRAW + problem.ranks)),
        hot_frac * layout.step_us,
        cold_frac * layout.step_us,
        seed,
    )
    where = (_ranks(problem, *each) for each in zip(chosen.tolist(), places, strict=True))
    return Layout(problem, chosen, tuple(where))


def _shares(problem: Problem) -> Floats:
    """Microseconds of W and V, and shares of the memories that have an end and that a choice
    takes something of."""
    each, most = sizes(problem), limits(problem)
    each[:, MEMORY:] /= most[MEMORY:]
    used = [at for at in range(len(MEASURES)) if at < MEMORY or each[:, at].any()]
    return np.ascontiguousarray(each[:, used])


def _ranks(problem: Problem, choice: int, place: Ints) -> tuple[int, ...]:
    reach, first = problem.choices.reach[choice], int(place[0])
    if reach == EVERY:
        return tuple(range(problem.ranks))
    if reach == GROUP:
        return tuple(range(first, first + problem.linked))
    return tuple(sorted(place[: problem.choices.parts[choice]].tolist()))
