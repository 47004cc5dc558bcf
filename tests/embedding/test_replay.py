"""Closed forms against exact replays of drawn streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_but

from benchmarks.streams import last_lookups
from perfmodel.base.arrays import Ints
from perfmodel.embedding import (
    Cache,
    Lfu,
    Lru,
    Policy,
    Popularity,
    SetAssociativeLru,
    StaticHotSet,
    TableAccess,
    draw_lookups,
    replay,
    steady_use,
    zipf,
)
from perfmodel.errors import WorkloadError

ROWS, LOOKUPS = 2_000, 1 << 17
TOLERANCE = 0.03
"""Of single settings; the grid of `benchmarks/locality.py` has the medians, below 0.01."""


def by_definition(rows: Ints, capacity: int, step: Ints, *, frequency: bool) -> list[bool]:
    """Whether fewer rows than fit had a higher priority when the step began, counted one by one."""
    found: list[bool] = []
    priority: dict[int, tuple[int, int]] = {}
    for number in np.unique(step):
        places = np.flatnonzero(step == number)
        for row in rows[places].tolist():
            mine = priority.get(row)
            found.append(
                mine is not None and sum(other > mine for other in priority.values()) < capacity
            )
        for place in places.tolist():
            row = int(rows[place])
            count = priority.get(row, (0, 0))[0] + 1 if frequency else 0
            priority[row] = (count, place)
    return found


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=60),
    st.integers(1, 12),
    st.integers(0, 9),
    st.booleans(),
)
def test_what_stays_is_what_policies_mean(
    stream: list[int], batch: int, capacity: int, frequency: bool
) -> None:
    rows = np.array(stream)
    step = np.arange(len(rows)) // batch
    policy = Lfu() if frequency else Lru()
    expected = by_definition(rows, capacity, step, frequency=frequency)
    assert policy.hits(rows, capacity, step).tolist() == expected


def test_lru_by_hand() -> None:
    found = replay(np.array([1, 2, 1, 3, 2, 1]), 2, Lru())
    assert found.found.tolist() == [False, False, True, False, False, False]
    assert found.hit_frac == pytest.approx(1 / 6)


def test_batches_fetch_distinct_rows_once() -> None:
    found = replay(np.array([1, 1, 2, 3, 3, 3, 2, 9]), 2, Lru(), batch_lookups=4)
    assert found.distinct_rows.tolist() == [3, 3]
    assert found.fetched_rows.tolist() == [3, 1]
    assert found.found.tolist() == [False] * 4 + [True, True, True, False]


def test_a_static_set_knows_another_stream() -> None:
    profile = np.array([5, 5, 5, 6, 6, 7])
    found = replay(np.array([7, 6, 5, 6]), 2, StaticHotSet(profile))
    assert found.found.tolist() == [False, True, True, True]


def test_direct_mapped_places_keep_the_last_row() -> None:
    found = replay(np.array([3, 3, 4, 4, 3]), 1, SetAssociativeLru(1))
    assert found.found.tolist() == [False, True, False, True, False]


def stream_and_table(
    popularity: Popularity, policy: Policy, batch: int
) -> tuple[np.ndarray, TableAccess]:
    drawn = draw_lookups(popularity, LOOKUPS, seed=1)
    drawn = np.concatenate([last_lookups(popularity, seed=2), drawn])
    return drawn, TableAccess(popularity=popularity, lookups=batch, row_bytes=1.0)


@pytest.mark.parametrize("batch", slow_but(1, [4_096, 256]))
@pytest.mark.parametrize("alpha", slow_but(1, [0.9, 0.4, 1.4]))
def test_closed_forms_agree_with_replays(alpha: float, batch: int) -> None:
    popularity = zipf(ROWS, alpha)
    profile = draw_lookups(popularity, 1 << 20, seed=3)
    for policy in (Lru(), SetAssociativeLru(8), StaticHotSet(profile)):
        stream, table = stream_and_table(popularity, policy, batch)
        for capacity in (40, 600):
            made = replay(
                stream, capacity, policy, batch_lookups=batch, warm_up=len(stream) - LOOKUPS // 2
            )
            told = steady_use([table], Cache(capacity, policy))
            assert told.hit_frac[0] == pytest.approx(made.hit_frac, abs=TOLERANCE)
            assert told.distinct_hit_frac[0] == pytest.approx(made.distinct_hit_frac, abs=TOLERANCE)
            assert told.distinct_rows[0] == pytest.approx(made.distinct_rows.mean(), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Lru(), SetAssociativeLru(8)], ids=repr)
def test_closed_forms_hold_for_other_shapes_than_zipf(policy: Policy) -> None:
    """A hot tenth, a warm third and rows that are hardly ever used."""
    popularity = Popularity(np.array([200.0, 700.0, 4_000.0]), np.array([0.6, 0.3, 0.1]))
    stream, table = stream_and_table(popularity, policy, 1)
    for capacity in (100, 500, 2_000):
        made = replay(stream, capacity, policy, warm_up=len(stream) - LOOKUPS // 2)
        told = steady_use([table], Cache(capacity, policy))
        assert told.hit_frac[0] == pytest.approx(made.hit_frac, abs=TOLERANCE)


def test_two_tables_in_one_cache_against_their_mixed_replay() -> None:
    busy, idle = zipf(ROWS, 0.8), zipf(ROWS, 1.1)
    generator = np.random.default_rng(4)
    of_busy = generator.random(LOOKUPS) < 0.8
    rows = np.where(
        of_busy,
        draw_lookups(busy, LOOKUPS, seed=5),
        ROWS + draw_lookups(idle, LOOKUPS, seed=6),
    )
    made = replay(rows, 500, Lru(), warm_up=LOOKUPS // 2)
    told = steady_use(
        [
            TableAccess(popularity=busy, lookups=800, row_bytes=4.0),
            TableAccess(popularity=idle, lookups=200, row_bytes=4.0),
        ],
        Cache(2_000),
    )
    counted = of_busy[LOOKUPS // 2 :]
    assert told.hit_frac[0] == pytest.approx(made.found[counted].mean(), abs=0.01)
    assert told.hit_frac[1] == pytest.approx(made.found[~counted].mean(), abs=0.01)


def test_impossible_replays_are_refused() -> None:
    with pytest.raises(WorkloadError, match="batches of 0"):
        replay(np.arange(4), 2, Lru(), batch_lookups=0)
    with pytest.raises(WorkloadError, match="less than one batch"):
        replay(np.arange(4), 2, Lru(), batch_lookups=8)
