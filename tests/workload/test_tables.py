"""How many distinct rows a batch touches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collect.models.dlrm import zipf_indices
from perfmodel.embedding import zipf
from perfmodel.workload.tables import Table, lookups


def unique_rows(rows: int, alpha: float, count: int) -> float:
    return Table(rows, 8, alpha=alpha).unique_rows(count)


def test_uniform_is_exact() -> None:
    assert unique_rows(1, 0.0, 5) == 1
    assert unique_rows(2, 0.0, 1) == pytest.approx(1)
    assert unique_rows(2, 0.0, 2) == pytest.approx(1.5)
    assert unique_rows(10**9, 0.0, 1000) == pytest.approx(1000, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 1.05, 1.4])
@pytest.mark.parametrize(("rows", "count"), [(1_000, 5_000), (200_000, 100_000)])
def test_as_the_collector_draws(alpha: float, rows: int, count: int) -> None:
    generator = np.random.default_rng(1)
    drawn = [len(np.unique(zipf_indices(generator, rows, count, alpha))) for _ in range(5)]
    assert unique_rows(rows, alpha, count) == pytest.approx(np.mean(drawn), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.05, 2.0])
def test_classes_of_rows_equal_the_full_sum_for_ten_million_rows(alpha: float) -> None:
    rows, count = 10_000_000, 1_000_000
    rank = np.arange(1, rows + 2, dtype=np.float64)
    integral = np.log(rank) if alpha == 1 else rank ** (1 - alpha) / (1 - alpha)
    probability = np.diff(integral) / (integral[-1] - integral[0])
    exact = -np.expm1(count * np.log1p(-probability)).sum()
    assert unique_rows(rows, alpha, count) == pytest.approx(exact, rel=1e-3)


@given(st.integers(1, 10**7), st.floats(0, 3), st.integers(1, 10**6))
def test_no_more_than_rows_or_lookups(rows: int, alpha: float, count: int) -> None:
    unique = unique_rows(rows, alpha, count)
    assert 0 < unique <= min(rows, count) * (1 + 1e-6)


@given(st.integers(2, 10**6), st.floats(0, 2), st.integers(1, 10**5))
def test_more_lookups_touch_more_rows_and_skew_fewer(rows: int, alpha: float, count: int) -> None:
    unique = unique_rows(rows, alpha, count)
    assert unique_rows(rows, alpha, 2 * count) >= unique * (1 - 1e-9)
    assert unique_rows(rows, 0.0, count) >= unique * (1 - 1e-3)


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
