"""Closed forms: answers by hand, and what holds of every cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.embedding import (
    POLICIES,
    CacheUse,
    Popularity,
    TableAccess,
    steady_use,
    uniform,
    zipf,
)
from perfmodel.errors import WorkloadError

EVERY = list(POLICIES)
ROWS = 20_000


def use(popularity: Popularity, capacity: float, policy: str, lookups: float = 512) -> CacheUse:
    table = TableAccess(popularity=popularity, lookups=lookups, row_bytes=1.0)
    return steady_use([table], capacity, policy)


def test_the_policies_that_are_there() -> None:
    assert list(POLICIES) == ["lfu", "lru", "static"]


@pytest.mark.parametrize("policy", EVERY)
def test_everything_fits_or_nothing_does(policy: str) -> None:
    assert use(zipf(100, 1.0), 100, policy).hit_frac[0] == pytest.approx(1.0, abs=1e-6)
    assert use(zipf(100, 1.0), 0, policy).hit_frac[0] == 0.0
    assert use(zipf(10**24, 10.0), 1_000, policy).hit_frac[0] > 0.999  # nearly all of one row


@given(st.floats(0.0, 1.5), st.floats(1.0, ROWS))
def test_what_knows_more_finds_no_less(alpha: float, capacity: float) -> None:
    popularity = zipf(ROWS, alpha)
    recent, popular = (use(popularity, capacity, policy).hit_frac[0] for policy in ("lru", "lfu"))
    assert recent <= popular + 1e-6


@pytest.mark.parametrize("policy", EVERY)
def test_uniform_lookups_hit_by_the_share_of_rows(policy: str) -> None:
    found = use(uniform(1_000), 250, policy)
    assert found.hit_frac[0] == pytest.approx(0.25)
    assert found.cached_rows[0] == pytest.approx(250)
    distinct = 1_000 * (1 - 0.999**512)
    assert found.distinct_rows[0] == pytest.approx(distinct)
    assert found.fetched_rows[0] == pytest.approx(0.75 * distinct)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3])
def test_static_hot_set_by_harmonic_sums(alpha: float) -> None:
    weight = np.arange(1.0, ROWS + 1) ** -alpha
    expected = weight[:700].sum() / weight.sum()
    assert use(zipf(ROWS, alpha), 700, "static").hit_frac[0] == pytest.approx(expected, rel=1e-4)


@given(st.sampled_from(EVERY), st.floats(0.0, 1.5), st.floats(1.0, ROWS), st.floats(1.0, 3.0))
def test_a_larger_cache_finds_no_less(
    policy: str, alpha: float, capacity: float, more: float
) -> None:
    popularity = zipf(ROWS, alpha)
    small, large = (use(popularity, c, policy) for c in (capacity, capacity * more))
    assert -1e-9 <= small.hit_frac[0] <= large.hit_frac[0] + 1e-7 <= 1.0 + 1e-6
    assert large.fetched_rows[0] <= small.fetched_rows[0] + 1e-6
    assert small.cached_rows[0] <= capacity * (1 + 1e-6)


@given(st.sampled_from(EVERY), st.floats(0.0, 1.4), st.floats(0.1, 0.9), st.floats(10.0, ROWS))
def test_a_table_in_two_pieces_is_the_same_table(
    policy: str, alpha: float, part: float, capacity: float
) -> None:
    popularity = zipf(ROWS, alpha)
    whole = TableAccess(popularity=popularity, lookups=1_000, row_bytes=64.0)
    pieces = [
        replace(whole, popularity=popularity.part(frac), lookups=1_000 * frac)
        for frac in (part, 1.0 - part)
    ]
    one, two = (steady_use(tables, capacity * 64.0, policy) for tables in ([whole], pieces))
    assert two.overall_hit_frac == pytest.approx(one.overall_hit_frac, abs=1e-6)
    assert two.fetched_rows.sum() == pytest.approx(one.fetched_rows.sum(), rel=1e-6, abs=1e-6)
    assert two.cached_rows.sum() == pytest.approx(one.cached_rows.sum(), rel=1e-6, abs=1e-6)


EXTREME_TABLES = st.builds(
    lambda magnitude, alpha, lookups, row_bytes: TableAccess(
        popularity=zipf(int(10**magnitude), alpha), lookups=10**lookups, row_bytes=row_bytes
    ),
    st.floats(0.0, 13.0),
    st.sampled_from([0.0, 0.3, 1.0, 1.7, 10.0]),
    st.floats(0.0, 8.0),
    st.floats(16.0, 1_024.0),
)


@given(
    st.lists(EXTREME_TABLES, min_size=1, max_size=3),
    st.sampled_from(EVERY),
    st.floats(0.0, 15.0),
)
def test_any_tables_give_shares_within_the_capacity(
    tables: list[TableAccess], policy: str, magnitude: float
) -> None:
    found = steady_use(tables, 10**magnitude, policy)
    assert ((found.hit_frac >= 0) & (found.hit_frac <= 1 + 1e-9)).all()
    assert (found.fetched_rows >= -1e-6).all()
    assert (found.distinct_rows <= found.lookups * (1 + 1e-6)).all()
    assert np.dot(found.cached_rows, found.row_bytes) <= 10**magnitude * (1 + 1e-6)


def test_a_busy_table_takes_the_cache_of_an_idle_one() -> None:
    busy = TableAccess(popularity=zipf(ROWS, 0.8), lookups=10_000, row_bytes=64.0)
    idle = replace(busy, lookups=100)
    found = steady_use([busy, idle], 64.0 * 4_000)
    assert found.hit_frac[0] > found.hit_frac[1] + 0.2
    assert found.cached_rows[0] > 5 * found.cached_rows[1]
    alone = steady_use([busy], 64.0 * 4_000)
    assert alone.hit_frac[0] > found.hit_frac[0]


def test_a_static_set_keeps_the_hottest_rows_of_all_tables() -> None:
    half = Popularity(np.array([1.0, 9.0]), np.array([0.5, 0.5]))
    most = Popularity(np.array([1.0, 9.0]), np.array([0.75, 0.25]))
    tables = [
        TableAccess(popularity=half, lookups=100, row_bytes=1),
        TableAccess(popularity=most, lookups=200, row_bytes=1),
    ]
    found = steady_use(tables, 2.0, "static")
    assert found.hit_frac == pytest.approx([0.5, 0.75])


def test_a_thousand_tables_share_one_cache() -> None:
    tables = [
        TableAccess(popularity=zipf(50_000, 0.6 + n / 1_000), lookups=100, row_bytes=128.0)
        for n in range(1_000)
    ]
    found = steady_use(tables, 128.0 * 1e6)
    assert found.cached_rows.sum() == pytest.approx(1e6, rel=1e-4)
    assert (np.diff(found.hit_frac) > 0).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: steady_use([], -1.0), "a cache of -1 bytes"),
        (lambda: steady_use([], 1.0), "without tables"),
        (lambda: TableAccess(popularity=uniform(2), lookups=0, row_bytes=4), "0 lookups"),
        (lambda: TableAccess(popularity=uniform(2), lookups=1, row_bytes=-4), "-4 bytes"),
    ],
)
def test_what_makes_no_cache_is_refused(make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WorkloadError, match=says):
        make()
