"""Distributions against sums over every row, and what no distribution may break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.embedding import Popularity, uniform, zipf, zipf_alpha_of
from perfmodel.embedding.popularity import zipf_classes
from perfmodel.errors import WorkloadError

BISECTED_TO = 1e-6
"""Exponents are bisected that far; the last digits of what they bisect are the processor's."""


def test_uniform_by_hand() -> None:
    four = uniform(4)
    assert four.covered_frac(1) == pytest.approx(0.25)
    assert four.hot_rows(0.5) == pytest.approx(2.0)
    assert four.distinct_rows([1, 2]) == pytest.approx([1.0, 4 * (1 - (3 / 4) ** 2)])


def test_zipf_of_three_rows_by_hand() -> None:
    three = zipf(3, 1.0)
    assert three.share == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert three.covered_frac([1, 2, 3]) == pytest.approx([6 / 11, 9 / 11, 1.0])
    touched = sum(1 - (1 - share) ** 2 for share in (6 / 11, 3 / 11, 2 / 11))
    assert float(three.distinct_rows(2)) == pytest.approx(touched)


@pytest.mark.parametrize("rows", [5, 1_000, 300_000])
@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.4])
def test_zipf_against_every_row(rows: int, alpha: float) -> None:
    weight = np.arange(1.0, rows + 1) ** -alpha
    share = weight / weight.sum()
    classes = zipf(rows, alpha)
    assert classes.total_rows == pytest.approx(rows)
    for hot in (1, rows // 10 + 1, rows // 2):
        assert float(classes.covered_frac(hot)) == pytest.approx(share[:hot].sum(), rel=1e-4)
    for lookups in (1, 100, rows, 20 * rows):
        touched = -np.expm1(lookups * np.log1p(-share)).sum()
        assert float(classes.distinct_rows(lookups)) == pytest.approx(touched, rel=1e-4)


def test_a_billion_rows_are_few_classes() -> None:
    huge = zipf(10**9, 1.05)
    assert len(huge.rows) < 500
    assert huge.total_rows == pytest.approx(1e9)
    assert 1e6 < float(huge.distinct_rows(1e7)) < 1e7


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.4])
def test_smooth_ranks_are_integrals(alpha: float) -> None:
    edges = np.arange(1.0, 20_002)
    below = np.log(edges) if alpha == 1 else (edges ** (1 - alpha) - 1) / (1 - alpha)
    share = np.diff(below) / below[-1]
    found = zipf(20_000, alpha, smooth=True)
    assert found.share[:2] == pytest.approx(share[:2], rel=1e-6)
    assert float(found.covered_frac(700)) == pytest.approx(share[:700].sum(), rel=1e-4)
    touched = -np.expm1(9_000 * np.log1p(-share)).sum()
    assert float(found.distinct_rows(9_000)) == pytest.approx(touched, rel=1e-4)


def test_many_tables_at_once_as_one_by_one() -> None:
    counts, share = zipf_classes(np.array([3.0, 1e6]), np.array([1.0, 0.7]))
    assert counts.sum(axis=1) == pytest.approx([3.0, 1e6])
    assert share[0, :3] == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert share[1, 0] == pytest.approx(zipf(1_000_000, 0.7).share[0], rel=1e-4)


@given(st.integers(2, 10**9), st.floats(0.0, 2.0), st.floats(1.0, 1e8))
def test_distinct_rows_are_no_more_than_lookups_or_rows(
    rows: int, alpha: float, lookups: float
) -> None:
    touched = float(zipf(rows, alpha).distinct_rows(lookups))
    assert 1.0 - 1e-6 <= touched <= min(rows, lookups) * (1 + 1e-9)


@given(st.floats(0.0, 1.4), st.floats(0.01, 0.5))
def test_more_skew_touches_fewer_rows_and_covers_more(alpha: float, more: float) -> None:
    less_skewed, skewed = zipf(50_000, alpha), zipf(50_000, alpha + more)
    assert float(skewed.distinct_rows(20_000)) < float(less_skewed.distinct_rows(20_000))
    assert float(skewed.covered_frac(500)) > float(less_skewed.covered_frac(500))


@pytest.mark.parametrize("alpha", [0.3, 0.9, 1.05, 1.4])
def test_the_exponent_is_found_again_from_distinct_rows(alpha: float) -> None:
    touched = float(zipf(1_000_000, alpha).distinct_rows(200_000))
    assert zipf_alpha_of(1_000_000, 200_000, touched) == pytest.approx(alpha, abs=1e-3)


def test_exponents_of_many_tables_are_those_of_each() -> None:
    rows, lookups = np.array([1_000, 50_000, 1_000_000]), 20_000
    distinct = np.array([900.0, 12_000.0, 3_000.0])
    each = [float(zipf_alpha_of(*pair)) for pair in zip(rows, [lookups] * 3, distinct, strict=True)]
    assert zipf_alpha_of(rows, lookups, distinct) == pytest.approx(each, abs=BISECTED_TO)


def test_as_many_distinct_rows_as_uniform_lookups_have_no_skew() -> None:
    found = zipf_alpha_of(1_000, 500, float(uniform(1_000).distinct_rows(500)))
    assert found == pytest.approx(0.0, abs=BISECTED_TO)


def test_a_shard_takes_its_part_of_every_class() -> None:
    half = zipf(10_000, 1.0).part(0.5)
    assert half.total_rows == pytest.approx(5_000)
    assert float(half.covered_frac(50)) == pytest.approx(float(zipf(10_000, 1.0).covered_frac(100)))


@pytest.mark.parametrize(
    ("rows", "share", "says"),
    [
        ([1.0], [0.5], "sum to 0.5"),
        ([0.0, 1.0], [0.5, 0.5], "a class has rows"),
        ([1.0, 1.0], [1.5, -0.5], "not negative"),
        ([np.nan], [1.0], "finite"),
        ([1.0, 2.0], [1.0], "one length"),
    ],
)
def test_what_is_no_distribution_is_refused(
    rows: list[float], share: list[float], says: str
) -> None:
    with pytest.raises(WorkloadError, match=says):
        Popularity(np.array(rows), np.array(share))


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(WorkloadError, match="0 rows"):
        uniform(0)
    with pytest.raises(WorkloadError, match="alpha -1"):
        zipf(10, -1.0)
    with pytest.raises(WorkloadError, match="cannot touch 20"):
        zipf_alpha_of(10, 100, 20)
