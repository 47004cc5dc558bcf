"""Closed forms against exact replays of drawn streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_but

from benchmarks.streams import draw_lookups, last_lookups, replay
from perfmodel.embedding import Popularity, TableAccess, steady_use, zipf
from perfmodel.errors import WorkloadError

ROWS, LOOKUPS = 2_000, 1 << 17
TOLERANCE = 0.03
"""Of single settings; `benchmarks/locality_cases.py` has the medians, below 0.01."""


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 9))
def test_what_stays_was_looked_up_last(stream: list[int], batch: int, capacity: int) -> None:
    """Whether fewer rows than fit came later when the batch began, counted one by one."""
    whole = len(stream) // batch * batch
    if not whole:
        return
    last: dict[int, int] = {}
    expected: list[bool] = []
    for begin in range(0, whole, batch):
        for row in stream[begin : begin + batch]:
            later = sum(other > last.get(row, -1) for other in last.values())
            expected.append(row in last and later < capacity)
        last |= {stream[at]: at for at in range(begin, begin + batch)}
    found, _ = replay(np.array(stream), capacity, batch_lookups=batch)
    assert found.tolist() == expected


def test_lru_by_hand() -> None:
    found, _ = replay(np.array([1, 2, 1, 3, 2, 1]), 2)
    assert found.tolist() == [False, False, True, False, False, False]


def test_batches_fetch_distinct_rows_once() -> None:
    found, fetched = replay(np.array([1, 1, 2, 3, 3, 3, 2, 9]), 2, batch_lookups=4)
    assert fetched.tolist() == [3, 1]
    assert found.tolist() == [False] * 4 + [True, True, True, False]
    later, _ = replay(np.array([1, 1, 2, 3, 3, 3, 2, 9]), 2, batch_lookups=2, warm_up=5)
    assert later.tolist() == [True, True]


def warm_stream(popularity: Popularity) -> np.ndarray:
    drawn = draw_lookups(popularity, LOOKUPS, seed=1)
    return np.concatenate([last_lookups(popularity, seed=2), drawn])


@pytest.mark.parametrize("batch", slow_but(1, [4_096, 256]))
@pytest.mark.parametrize("alpha", slow_but(1, [0.9, 0.4, 1.4]))
def test_closed_forms_agree_with_replays(alpha: float, batch: int) -> None:
    popularity = zipf(ROWS, alpha)
    stream = warm_stream(popularity)
    table = TableAccess(popularity=popularity, lookups=batch, row_bytes=1.0)
    for capacity in (40, 600):
        warm_up = len(stream) - LOOKUPS // 2
        found, fetched = replay(stream, capacity, batch_lookups=batch, warm_up=warm_up)
        told = steady_use([table], capacity)
        assert told.hit_frac[0] == pytest.approx(found.mean(), abs=TOLERANCE)
        missed = TOLERANCE * told.distinct_rows[0]
        assert told.fetched_rows[0] == pytest.approx(fetched.mean(), abs=missed)


@pytest.mark.slow
def test_closed_forms_hold_for_other_shapes_than_zipf() -> None:
    """A hot tenth, a warm third and rows that are hardly ever used."""
    popularity = Popularity(np.array([200.0, 700.0, 4_000.0]), np.array([0.6, 0.3, 0.1]))
    stream = warm_stream(popularity)
    table = TableAccess(popularity=popularity, lookups=1, row_bytes=1.0)
    for capacity in (100, 500, 2_000):
        found, _ = replay(stream, capacity, warm_up=len(stream) - LOOKUPS // 2)
        told = steady_use([table], capacity)
        assert told.hit_frac[0] == pytest.approx(found.mean(), abs=TOLERANCE)


def test_two_tables_in_one_cache_against_their_mixed_replay() -> None:
    busy, idle = zipf(ROWS, 0.8), zipf(ROWS, 1.1)
    generator = np.random.default_rng(4)
    of_busy = generator.random(LOOKUPS) < 0.8
    rows = np.where(
        of_busy,
        draw_lookups(busy, LOOKUPS, seed=5),
        ROWS + draw_lookups(idle, LOOKUPS, seed=6),
    )
    found, _ = replay(rows, 500, warm_up=LOOKUPS // 2)
    told = steady_use(
        [
            TableAccess(popularity=busy, lookups=800, row_bytes=4.0),
            TableAccess(popularity=idle, lookups=200, row_bytes=4.0),
        ],
        2_000,
    )
    counted = of_busy[LOOKUPS // 2 :]
    assert told.hit_frac[0] == pytest.approx(found[counted].mean(), abs=0.01)
    assert told.hit_frac[1] == pytest.approx(found[~counted].mean(), abs=0.01)


def test_impossible_replays_are_refused() -> None:
    with pytest.raises(WorkloadError, match="batches of 0"):
        replay(np.arange(4), 2, batch_lookups=0)
    with pytest.raises(WorkloadError, match="batches of 8"):
        replay(np.arange(4), 2, batch_lookups=8)
