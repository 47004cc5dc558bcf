"""Queries served from drives, and fleets of hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.designs.software_memory import UserSide, query_us
from perfmodel.errors import UsageError
from perfmodel.hardware.parts import Storage

DRIVE = Storage(name="nand", read_gb_per_s=10.0, read_iops=100_000, read_latency_us=100.0)
USER = UserSide(DRIVE, 2, lookups=1_000, row_bytes=128, hit_frac=0.9)


def test_reads_are_what_caches_leave() -> None:
    assert USER.reads == pytest.approx(100)
    assert replace(USER, pooled_frac=0.5).reads == pytest.approx(50)
    assert USER.most_queries_per_s == pytest.approx(2_000)


def test_one_query_on_idle_drives_waits_for_its_last_read() -> None:
    assert USER.latency(1e-3).p99_us == pytest.approx(100 + 99 * 5)


def test_more_than_the_drives_can_is_said() -> None:
    found = USER.latency(2_001.0)
    assert not found.is_stable
    assert query_us(found, 100.0, 50.0) is None


def test_items_hide_the_users_reads() -> None:
    quick = USER.latency(1e-3)
    assert query_us(quick, 1_000.0, 50.0) == pytest.approx(1_050)
    assert query_us(quick, 10.0, 50.0) == pytest.approx(595 + 50)


def test_a_short_queue_reads_one_after_the_other() -> None:
    assert replace(USER, in_flight=1).read_us == pytest.approx(100.0)


def test_a_cache_fills_with_what_misses() -> None:
    """1,000 queries of 100 reads of 128 bytes are 12.8 MB a second."""
    assert USER.warm_up_s(1_000.0, 12.8e9) == pytest.approx(1_000.0)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1_900))
@settings(max_examples=30)
def test_a_better_cache_never_hurts(one: float, other: float, rate: float) -> None:
    low, high = sorted((one, other))
    worse, better = replace(USER, hit_frac=low), replace(USER, hit_frac=high)
    assert better.most_queries_per_s >= worse.most_queries_per_s
    slow, quick = worse.latency(rate), better.latency(rate)
    if slow.p99_us is not None:
        assert quick.p99_us is not None
        assert quick.p99_us <= slow.p99_us * (1 + 1e-6)


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="share"):
        replace(USER, hit_frac=1.5)
    with pytest.raises(UsageError, match="above 0"):
        replace(USER, lookups=0.0)
