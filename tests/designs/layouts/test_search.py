"""The planner's search: optimal where small, near a lower bound where large, within capacity."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from designs.layouts.random_problems import problem
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow_but

from perfmodel.designs.layouts.problem import ANY, EVERY, FixedTimes, Layout, Problem
from perfmodel.designs.layouts.search import improved, lower_bound, search


def places(it: Problem, choice: int) -> list[tuple[int, ...]]:
    """Every set of ranks that may hold the shards of a choice."""
    reach, parts = int(it.reach[choice]), int(it.parts[choice])
    if reach == EVERY:
        return [tuple(range(it.ranks))]
    if reach == ANY:
        return list(combinations(range(it.ranks), parts))
    return [tuple(range(at, at + it.linked)) for at in range(0, it.ranks, it.linked)]


def tried_all(it: Problem) -> float:
    """The best step of all layouts there are."""
    ways = [[(int(own), at) for own in each for at in places(it, own)] for each in it.of_table]
    best = np.inf
    for layout in product(*ways):
        chosen, ranks = zip(*layout, strict=True)
        found = Layout(it, np.array(chosen), ranks)
        if found.fits:
            best = min(best, found.step_us)
    return best


@pytest.mark.parametrize("seeds", slow_but(1, [range(2), range(2, 5)]), ids=repr)
def test_small_problems_are_solved_within_eight_percent(seeds: range) -> None:
    for seed in seeds:
        it = problem(seed, 3 + (seed % 6 == 1), 2, 2)
        best, optimum_us = search(it)[0], tried_all(it)
        assert best.fits
        assert best.step_us <= 1.08 * optimum_us
        assert lower_bound(it) <= optimum_us * (1 + 1e-6)


def skewed(it: Problem, seed: int) -> Problem:
    """Row-wise parts up to their own work busier on one rank, of every other table on the first."""
    more = np.random.default_rng(seed).random(len(it.ways)) * it.work_us
    more = more * (it.sharding == "row_wise")
    in_blocks = np.array([way.number % 2 == 1 for way in it.ways])
    return replace(it, first_us=more * in_blocks, scattered_us=more * ~in_blocks)


@pytest.mark.parametrize("seeds", slow_but(1, [range(1), range(1, 3)]), ids=repr)
def test_the_bound_is_below_skewed_layouts_too(seeds: range) -> None:
    for seed in seeds:
        it = skewed(problem(seed, 3, 2, 2), seed)
        optimum_us = tried_all(it)
        assert search(it)[0].step_us <= 1.08 * optimum_us
        assert lower_bound(it) <= optimum_us * (1 + 1e-6)


def test_skew_of_a_layout_by_hand() -> None:
    """Three row-wise tables of 10 us on each of two ranks. In blocks by popularity: 4 us more on
    the first rank, and less on the other. Rows anywhere: 3 and 4 us more, together 5."""
    it = problem(0, 3, 2, 2)
    rows = np.flatnonzero(it.sharding == "row_wise")
    work, first, scattered = np.zeros((3, len(it.ways)))
    work[rows], first[rows], scattered[rows] = 10.0, (0.0, 4.0, 0.0), (3.0, 0.0, 4.0)
    it = replace(it, work_us=work, first_us=first, scattered_us=scattered)
    layout = Layout(it, rows, ((0, 1),) * 3)
    assert layout.held[:, 0] == pytest.approx([34.0, 26.0])
    assert layout.parts["busiest_us"] == pytest.approx(34.0 + 5.0)


def test_a_rank_with_two_columns_of_a_table_holds_both() -> None:
    it = problem(0, 1, 2, 2)
    cut = next(at for at in np.flatnonzero(it.reach == ANY) if it.parts[at] == 2)
    assert Layout(it, np.array([cut]), ((0, 0),)).held == pytest.approx(
        np.array([2 * it.sizes[cut], 0 * it.sizes[cut]])
    )


def test_replicas_are_not_summed_beside_their_own_work() -> None:
    """Of 60 us of work on each rank 20 are a replica's, whose sum takes 50: the other tables'
    backward pass hides 20 of it."""
    it = replace(problem(0, 2, 2, 2), beside=FixedTimes(), fixed_us=(0.0,) * 4)
    chosen = np.array([it.of_table[0][-1], it.of_table[1][0]])
    work, summed, nothing = np.zeros((3, len(it.ways)))
    work[chosen], summed[chosen[0]] = (20.0, 40.0), 50.0
    times = {"work_us": work, "summed_us": summed, "shared_us": nothing}
    times["sent_us"] = np.array([nothing, nothing])
    layout = Layout(replace(it, **times), chosen, ((0, 1), (0,)))
    assert layout.step_us == pytest.approx(60.0 + 50.0 - 20.0)


@pytest.mark.slow
def test_large_ones_are_within_ten_percent_of_a_lower_bound() -> None:
    it = problem(7, 200, 16, 8)
    best = search(it)[0]
    assert best.fits
    assert best.step_us <= 1.1 * lower_bound(it)


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), tables=st.integers(5, 30))
@pytest.mark.slow
def test_capacity_is_never_exceeded(seed: int, tables: int) -> None:
    it = problem(seed, tables, 8, 4)
    for layout in search(it):
        assert layout.fits
        for own, choice in zip(layout.ranks, layout.chosen, strict=True):
            assert len(set(own)) == it.parts[choice]


@pytest.mark.slow
def test_improving_never_harms_and_is_the_same_again() -> None:
    it = problem(20, 8, 4, 2)
    start = search(it)[-1]
    first, second = improved(start), improved(start)
    assert first.fits
    assert first.step_us <= start.step_us
    assert first.ranks == second.ranks
    np.testing.assert_array_equal(first.chosen, second.chosen)


def test_nothing_fits_in_no_memory() -> None:
    assert search(replace(problem(1, 4, 2, 2), room_bytes=(1e-3,) * 2)) == []
