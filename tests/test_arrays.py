"""Different values and quantiles are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.arrays import distinct, distinct_pairs, has_code, is_among, median, quantile


@pytest.mark.parametrize("count", [0, 1, 2, 7, 500])
def test_different_values_and_pairs(count: int) -> None:
    random = np.random.default_rng(count)
    first, second = random.integers(-4, 9, (2, count))
    assert distinct(first).tolist() == sorted(set(first.tolist()))
    pairs = sorted(set(zip(first.tolist(), second.tolist(), strict=True)))
    found = distinct_pairs(first, second)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == pairs
    for others in (second, second[:0], second[second < 2]):
        assert is_among(first, others).tolist() == np.isin(first, others).tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_codes_are_found_and_the_mask_is_ones_own(dtype: type[np.integer]) -> None:
    codes = np.arange(-1 if dtype != np.uint8 else 0, 100).astype(dtype)
    for chosen in ((), (0, 5, 99), (-1, 3)):
        found = has_code(codes, chosen)
        assert found.tolist() == np.isin(codes, chosen).tolist()
    found &= codes > 3  # what is not shared may be changed
    assert not found.any()


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_quantiles_lie_between_values_in_proportion(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    assert median(values) == pytest.approx(np.median(values), rel=1e-12)
    for share in (0.0, 0.05, 0.5, 0.77, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12)
