"""Closed forms: answers by hand, and what holds of every cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.embedding import (
    POLICIES,
    Cache,
    CacheUse,
    Lfu,
    Lru,
    Policy,
    Popularity,
    SetAssociativeLru,
    StaticHotSet,
    TableAccess,
    steady_use,
    uniform,
    zipf,
)
from perfmodel.errors import WorkloadError

EVERY = [POLICIES[name]() for name in POLICIES]
ROWS = 20_000


def use(popularity: Popularity, capacity: float, policy: Policy, lookups: float = 512) -> CacheUse:
    table = TableAccess(popularity=popularity, lookups=lookups, row_bytes=1.0)
    return steady_use([table], Cache(capacity, policy))


def test_the_policies_that_are_there() -> None:
    assert list(POLICIES) == ["lfu", "lru", "set_associative", "static"]


@pytest.mark.parametrize("policy", [Lru(), Lfu(), StaticHotSet()])
def test_uniform_lookups_hit_by_the_share_of_rows(policy: Policy) -> None:
    found = use(uniform(1_000), 250, policy)
    assert found.hit_frac[0] == pytest.approx(0.25)
    assert found.cached_rows[0] == pytest.approx(250)
    distinct = 1_000 * (1 - 0.999**512)
    assert found.distinct_rows[0] == pytest.approx(distinct)
    assert found.fetched_rows[0] == pytest.approx(0.75 * distinct)
    assert found.distinct_hit_frac[0] == pytest.approx(0.25)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3])
def test_static_hot_set_by_harmonic_sums(alpha: float) -> None:
    weight = np.arange(1.0, ROWS + 1) ** -alpha
    expected = weight[:700].sum() / weight.sum()
    assert use(zipf(ROWS, alpha), 700, StaticHotSet()).hit_frac[0] == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize("policy", [Lru(), SetAssociativeLru(2)], ids=repr)
def test_one_row_that_takes_nearly_all_lookups(policy: Policy) -> None:
    """Of 1e24 rows."""
    popularity = zipf(10**24, 10.0)
    assert use(popularity, 1_000, policy).hit_frac[0] > 0.999


def test_many_ways_are_fully_associative_and_one_way_conflicts() -> None:
    popularity = zipf(ROWS, 0.9)
    full = use(popularity, 1_000, Lru()).hit_frac[0]
    by_ways = [use(popularity, 1_000, SetAssociativeLru(w)).hit_frac[0] for w in (1, 4, 32, 1_000)]
    assert by_ways == sorted(by_ways)
    assert by_ways[0] < full - 0.01
    assert by_ways[-1] == pytest.approx(full, abs=1e-3)


def test_one_way_by_its_integral() -> None:
    """A place holds the last row of its set: present if no other of the set came since."""
    rows, places = 400, 100
    times = np.linspace(0.0, 40_000.0, 400_001)
    others = rows * -np.expm1(-times / rows) / places
    density = np.exp(-times / rows) / rows * np.exp(-others)
    expected = np.trapezoid(density, times) if hasattr(np, "trapezoid") else density.sum() * 0.1
    assert use(uniform(rows), places, SetAssociativeLru(1)).hit_frac[0] == pytest.approx(
        expected, abs=2e-3
    )


@pytest.mark.parametrize("policy", EVERY, ids=repr)
def test_everything_fits_or_nothing_does(policy: Policy) -> None:
    ways = getattr(policy, "ways", 1)
    assert use(zipf(100, 1.0), 100 * ways, policy).hit_frac[0] == pytest.approx(1.0, abs=1e-6)
    assert use(zipf(100, 1.0), 0, policy).hit_frac[0] == 0.0


@given(st.sampled_from(EVERY), st.floats(0.0, 1.5), st.floats(1.0, ROWS), st.floats(1.0, 3.0))
def test_a_larger_cache_finds_no_less(
    policy: Policy, alpha: float, capacity: float, more: float
) -> None:
    popularity = zipf(ROWS, alpha)
    small, large = (use(popularity, c, policy) for c in (capacity, capacity * more))
    assert -1e-9 <= small.hit_frac[0] <= large.hit_frac[0] + 1e-7 <= 1.0 + 1e-6
    assert large.fetched_rows[0] <= small.fetched_rows[0] + 1e-6
    assert small.cached_rows[0] <= capacity * (1 + 1e-6)


@given(st.floats(0.0, 1.5), st.floats(1.0, ROWS))
def test_what_knows_more_finds_no_less(alpha: float, capacity: float) -> None:
    popularity = zipf(ROWS, alpha)
    policies = (SetAssociativeLru(8), Lru(), StaticHotSet())
    ladder = [float(use(popularity, capacity, policy).hit_frac[0]) for policy in policies]
    assert all(low <= high + 1e-6 for low, high in pairwise(ladder))


@given(st.sampled_from(EVERY), st.floats(0.0, 1.4), st.floats(0.1, 0.9), st.floats(10.0, ROWS))
def test_a_table_in_two_pieces_is_the_same_table(
    policy: Policy, alpha: float, part: float, capacity: float
) -> None:
    popularity = zipf(ROWS, alpha)
    whole = TableAccess(popularity=popularity, lookups=1_000, row_bytes=64.0)
    pieces = [
        replace(whole, popularity=popularity.part(frac), lookups=1_000 * frac)
        for frac in (part, 1.0 - part)
    ]
    cache = Cache(capacity * 64.0, policy)
    one, two = steady_use([whole], cache), steady_use(pieces, cache)
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
    st.sampled_from([*EVERY, SetAssociativeLru(1)]),
    st.floats(0.0, 15.0),
)
def test_any_tables_give_shares_within_the_capacity(
    tables: list[TableAccess], policy: Policy, magnitude: float
) -> None:
    found = steady_use(tables, Cache(10**magnitude, policy))
    assert ((found.hit_frac >= 0) & (found.hit_frac <= 1 + 1e-9)).all()
    assert (found.fetched_rows >= -1e-6).all()
    assert (found.distinct_rows <= found.lookups * (1 + 1e-6)).all()
    assert np.dot(found.cached_rows, found.row_bytes) <= 10**magnitude * (1 + 1e-6)


def test_a_busy_table_takes_the_cache_of_an_idle_one() -> None:
    busy = TableAccess(popularity=zipf(ROWS, 0.8), lookups=10_000, row_bytes=64.0, name="busy")
    idle = replace(busy, lookups=100, name="idle")
    found = steady_use([busy, idle], Cache(64.0 * 4_000))
    assert found.hit_frac[0] > found.hit_frac[1] + 0.2
    assert found.cached_rows[0] > 5 * found.cached_rows[1]
    alone = steady_use([busy], Cache(64.0 * 4_000))
    assert alone.hit_frac[0] > found.hit_frac[0]
    assert found.to_frame()["name"].tolist() == ["busy", "idle"]
    assert repr(found).startswith("CacheUse(2 tables, ")


def test_a_static_set_keeps_the_hottest_rows_of_all_tables() -> None:
    half = Popularity(np.array([1.0, 9.0]), np.array([0.5, 0.5]))
    most = Popularity(np.array([1.0, 9.0]), np.array([0.75, 0.25]))
    tables = [
        TableAccess(popularity=half, lookups=100, row_bytes=1),
        TableAccess(popularity=most, lookups=200, row_bytes=1),
    ]
    found = steady_use(tables, Cache(2.0, StaticHotSet()))
    assert found.hit_frac == pytest.approx([0.5, 0.75])


def test_a_thousand_tables_share_one_cache() -> None:
    tables = [
        TableAccess(popularity=zipf(50_000, 0.6 + n / 1_000), lookups=100, row_bytes=128.0)
        for n in range(1_000)
    ]
    found = steady_use(tables, Cache(128.0 * 1e6))
    assert found.cached_rows.sum() == pytest.approx(1e6, rel=1e-4)
    assert (np.diff(found.hit_frac) > 0).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cache(-1.0), "a cache of -1 bytes"),
        (lambda: SetAssociativeLru(0), "0 ways"),
        (lambda: steady_use([], Cache(1.0)), "without tables"),
        (lambda: TableAccess(popularity=uniform(2), lookups=0, row_bytes=4), "0 lookups"),
        (lambda: TableAccess(popularity=uniform(2), lookups=1, row_bytes=-4), "-4 bytes"),
    ],
)
def test_what_makes_no_cache_is_refused(make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WorkloadError, match=says):
        make()
