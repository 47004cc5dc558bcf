"""Hot rows: shares by hand, limits, and what counting a sample costs in lookups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.embedding import Popularity, TableAccess, hot_set, uniform, zipf
from perfmodel.embedding.cache import mixed_hot_frac, split_hot
from perfmodel.errors import WorkloadError


def access(popularity: Popularity, lookups: float = 1.0, row_bytes: float = 8.0) -> TableAccess:
    return TableAccess(popularity=popularity, lookups=lookups, row_bytes=row_bytes)


SKEWED = Popularity(np.array([10.0, 90.0]), np.array([0.9, 0.1]))


def test_shares_by_hand() -> None:
    found = hot_set([access(SKEWED), access(SKEWED, 2)], 20 * 8)
    assert found.rows.tolist() == [10, 10]
    assert found.overall_hot_frac == pytest.approx(0.9)
    assert found.popular_frac == pytest.approx(0.9**3)
    mixed = (0.9 - 0.729) / (1 - 0.729)
    assert mixed_hot_frac(found.hot_frac, found.popular_frac) == pytest.approx([mixed, mixed])
    assert mixed_hot_frac(found.hot_frac, 0.5) == pytest.approx([0.8, 0.8])
    assert found.used_bytes == 160


def test_rows_that_take_less_go_first() -> None:
    wide, narrow = access(uniform(100), row_bytes=16), access(uniform(100), row_bytes=8)
    assert hot_set([wide, narrow], 100 * 8).rows.tolist() == [0, 100]


@settings(max_examples=30)
@given(st.floats(0.5, 1.3), st.floats(1e3, 1e7), st.floats(1.0, 2.0), st.floats(0.1, 20))
def test_more_budget_never_hurts_and_is_kept(
    alpha: float, budget: float, more: float, lookups: float
) -> None:
    tables = [access(zipf(100_000, alpha), lookups), access(zipf(5_000, 1.0))]
    less, enough = hot_set(tables, budget), hot_set(tables, budget * more)
    assert less.used_bytes <= budget * (1 + 1e-9)
    assert enough.popular_frac >= less.popular_frac - 1e-9
    learned = hot_set(tables, budget, sampled=1_000)
    assert learned.used_bytes <= budget * (1 + 1e-9)
    assert learned.overall_hot_frac <= less.overall_hot_frac + 1e-9


def test_hot_samples_rise_with_skew() -> None:
    found = [
        hot_set([access(zipf(10**6, alpha), 2.0)], 8e5).popular_frac for alpha in (0.6, 0.9, 1.2)
    ]
    assert found == sorted(found)
    assert found[0] < 0.3 < found[-1]


def test_a_sample_learns_what_its_counts_tell() -> None:
    """Against counts of a drawn sample: the share of other lookups that the rows kept then get."""
    rng = np.random.default_rng(1)
    popularity = zipf(20_000, 1.0)
    chance = np.repeat(popularity.chance, np.round(popularity.rows).astype(int))
    chance /= chance.sum()
    for sampled in (2_000, 50_000):
        counts = np.bincount(rng.choice(len(chance), sampled, p=chance), minlength=len(chance))
        kept = np.argsort(-(counts + rng.random(len(chance))), kind="stable")[:500]
        found = hot_set([access(popularity)], 500 * 8, sampled=sampled)
        assert found.overall_hot_frac == pytest.approx(chance[kept].sum(), abs=0.01)
    known = hot_set([access(popularity)], 500 * 8)
    assert known.overall_hot_frac == pytest.approx(float(popularity.covered_frac(500)))


def test_a_table_in_two() -> None:
    hot, cold = split_hot(SKEWED, 20)
    assert hot is not None
    assert cold is not None
    assert hot.rows.tolist() == [10, 10]
    assert hot.share == pytest.approx([0.9 / (0.9 + 0.1 / 9), 0.1 / 9 / (0.9 + 0.1 / 9)])
    assert cold.rows.tolist() == [80]
    assert split_hot(SKEWED, 0)[0] is None
    assert split_hot(SKEWED, 200)[1] is None


def test_no_budget_no_hot_rows() -> None:
    nothing = hot_set([access(SKEWED)], 0)
    assert nothing.popular_frac == 0
    assert mixed_hot_frac(nothing.hot_frac, nothing.popular_frac).tolist() == [0]
    everything = hot_set([access(SKEWED)], 1e9)
    assert everything.popular_frac == pytest.approx(1)
    assert mixed_hot_frac(everything.hot_frac, everything.popular_frac).tolist() == [1]


@pytest.mark.parametrize(("budget", "sampled"), [(-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0)])
def test_what_cannot_be(budget: float, sampled: float) -> None:
    with pytest.raises(WorkloadError):
        hot_set([access(SKEWED)], budget, sampled=sampled)


def test_more_popular_samples_than_hot_lookups() -> None:
    """Of 0.9 hot lookups 0.95 of the samples cannot live: the others look up none."""
    assert mixed_hot_frac(hot_set([access(SKEWED)], 80).hot_frac, 0.95) == pytest.approx([0.0])
