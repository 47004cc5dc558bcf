"""Annealing: never worse, always within memory, the same every time, better than moves alone."""

from __future__ import annotations

import numpy as np
import pytest
from explore.planner.random_problems import problem
from slow import slow_but

from perfmodel.explore.planner.anneal import anneal_layout
from perfmodel.explore.planner.search import _best_of_sets


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tables"), slow_but(1, [(19, 8), (20, 30)]))
def test_annealing_never_harms(seed: int, tables: int) -> None:
    it = problem(seed, tables, 8, 4)
    for number, start in enumerate(_best_of_sets(it)):
        kinds = frozenset(it.choices.kind[start.chosen].tolist())
        first = anneal_layout(start, kinds)
        second = anneal_layout(start, kinds) if number == 0 else first
        assert first.fits
        assert first.step_us <= start.step_us
        assert set(it.choices.kind[first.chosen].tolist()) <= kinds
        assert first.ranks == second.ranks
        np.testing.assert_array_equal(first.chosen, second.chosen)
        for own, choice in zip(first.ranks, first.chosen, strict=True):
            assert len(set(own)) == it.choices.parts[choice]


@pytest.mark.slow
def test_annealing_gets_out_of_what_moves_and_swaps_cannot() -> None:
    def gain_frac(seed: int) -> float:
        start = _best_of_sets(problem(seed, 30, 8, 8))[0]
        every = frozenset(start.problem.choices.kind.tolist())
        return 1 - anneal_layout(start, every).step_us / start.step_us

    assert any(gain_frac(seed) > 0.005 for seed in range(20, 24))
