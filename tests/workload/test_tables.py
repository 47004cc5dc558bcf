"""How many distinct rows a batch touches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collect.models.configuration import zipf_indices
from perfmodel.embedding import zipf
from perfmodel.workload.tables import Table, expected_unique_rows, lookups, popular_share


def test_uniform_is_exact() -> None:
    assert expected_unique_rows(1, 0.0, 5) == 1
    assert expected_unique_rows(2, 0.0, 1) == pytest.approx(1)
    assert expected_unique_rows(2, 0.0, 2) == pytest.approx(1.5)
    assert expected_unique_rows(10**9, 0.0, 1000) == pytest.approx(1000, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 1.05, 1.4])
@pytest.mark.parametrize(("rows", "count"), [(1_000, 5_000), (200_000, 100_000)])
def test_as_the_collector_draws(alpha: float, rows: int, count: int) -> None:
    generator = np.random.default_rng(1)
    drawn = [len(np.unique(zipf_indices(generator, rows, count, alpha))) for _ in range(5)]
    assert expected_unique_rows(rows, alpha, count) == pytest.approx(np.mean(drawn), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.05, 2.0])
def test_integral_equals_the_full_sum_for_ten_million_rows(alpha: float) -> None:
    rows, count = 10_000_000, 1_000_000
    rank = np.arange(1, rows + 1, dtype=np.float64)
    share = popular_share(rows, alpha, rank)
    probability = np.diff(share, prepend=0.0)
    exact = -np.expm1(count * np.log1p(-probability)).sum()
    assert expected_unique_rows(rows, alpha, count) == pytest.approx(exact, rel=1e-3)


@given(st.integers(1, 10**7), st.floats(0, 3), st.integers(1, 10**6))
def test_no_more_than_rows_or_lookups(rows: int, alpha: float, count: int) -> None:
    unique = expected_unique_rows(rows, alpha, count)
    assert 0 < unique <= min(rows, count) * (1 + 1e-6)


@given(st.integers(2, 10**6), st.floats(0, 2), st.integers(1, 10**5))
def test_more_lookups_touch_more_rows_and_skew_fewer(rows: int, alpha: float, count: int) -> None:
    unique = expected_unique_rows(rows, alpha, count)
    assert expected_unique_rows(rows, alpha, 2 * count) >= unique * (1 - 1e-9)
    assert expected_unique_rows(rows, 0.0, count) >= unique * (1 - 1e-3)


def test_popular_rows_take_their_share() -> None:
    assert popular_share(100, 0.0, [0, 50, 100]) == pytest.approx([0, 0.5, 1])
    assert popular_share(100, 1.0, [0, 100, 1000]) == pytest.approx([0, 1, 1])
    assert popular_share(10**6, 1.2, [10_000])[0] > 0.8


def test_lookups_add_up() -> None:
    about = lookups((Table(10, 4, 2), Table(30, 8, 1, 1.05)), 5)
    attributes = about.to_attributes()
    assert (attributes["tables"], attributes["lookups"], attributes["dim"]) == ("2", "15", "6")
    assert attributes["table_hash_size"] == "10,30"
    assert float(attributes["zipf_alpha"]) == pytest.approx(1.05 / 3)


def test_classes_of_rows_by_hand() -> None:
    table = Table(100, 4, 2, histogram=((0.5, 0.1), (0.5, 0.9)))
    touched = 10 * (1 - (1 - 0.05) ** 20) + 90 * (1 - (1 - 0.5 / 90) ** 20)
    assert table.unique_rows(10) == pytest.approx(touched)
    alpha = lookups([table], 10).alpha[0]
    as_zipf = zipf(100, alpha)
    assert float(as_zipf.distinct_rows(20)) == pytest.approx(touched, rel=1e-3)


@pytest.mark.parametrize("pooling", [1, 5, 100])
@pytest.mark.parametrize("batch", [64, 4_096, 262_144])
def test_popularity_of_rows_that_come_with_keys(pooling: int, batch: int) -> None:
    """As many distinct rows as the keys bring, although the lookups count as independent."""
    table = Table(200_000, 4, pooling, alpha=1.05, key_rows=200_000)
    found = table.popularity()
    assert found.total_rows == pytest.approx(200_000)
    touched = float(found.distinct_rows(batch * pooling))
    assert touched == pytest.approx(table.unique_rows(batch), rel=0.12)


def test_popularity_of_a_few_rows_with_many_keys() -> None:
    assert Table(3, 4, 100, key_rows=3).popularity().total_rows == pytest.approx(3)
