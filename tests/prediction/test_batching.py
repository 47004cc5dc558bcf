"""Batches with a limit to their delay, against known answers and a simulation of events."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.prediction.serving import MOST_QUERIES, BatchSteps, Service, batched_latency


def steps_of(most: int) -> BatchSteps:
    """200 us, and 5 more for each query; answers come 30 % later than the next batch may start."""
    sizes = (1, most)
    return BatchSteps(sizes, tuple(Service(200 + 5.0 * n, 1.3 * (200 + 5.0 * n)) for n in sizes))


def simulated(most: int, rate_per_s: float, delay_us: float, queries: int) -> np.ndarray:
    """Latency of each query: a batch starts when the server is free and it is full, or its first
    has waited for `delay_us`, with all that are there by then."""
    gaps = np.random.default_rng(1).exponential(1e6 / rate_per_s, queries + most)
    arrived = np.cumsum(gaps).tolist()
    free, first, starts, sizes = 0.0, 0, list[float](), list[int]()
    while first < queries:
        start = max(free, min(arrived[first] + delay_us, arrived[first + most - 1]))
        size = max(bisect_right(arrived, start, first, first + most) - first, 1)
        starts.append(start + 1.3 * (200 + 5 * size))
        sizes.append(size)
        free = start + 200 + 5 * size
        first += size
    answered = np.repeat(starts, sizes)
    return (answered - np.array(arrived[: len(answered)]))[queries // 20 :]


@pytest.mark.parametrize("most", [4, 16, 512])
@pytest.mark.parametrize("delay_us", [0.0, 400.0, 5_000.0])
def test_against_events(most: int, delay_us: float) -> None:
    for load in (0.1, 0.5, 0.9):
        rate = load * most / (200 + 5 * most) * 1e6
        queries = 800_000 if (most, load) == (4, 0.9) else 150_000  # few batches say little of it
        found = batched_latency(steps_of(most), rate, most, delay_us)
        events = simulated(most, rate, delay_us, queries)
        assert found.load_frac == pytest.approx(load)
        assert found.mean_us == pytest.approx(events.mean(), rel=0.05)
        assert found.p50_us == pytest.approx(np.quantile(events, 0.5), rel=0.05)
        assert found.p99_us == pytest.approx(np.quantile(events, 0.99), rel=0.05)


@pytest.mark.parametrize("load", [0.5, 0.9, 0.97])
def test_batches_of_one_are_the_queue_of_pollaczek_and_khinchine(load: float) -> None:
    """Of 205 us each, all alike: a wait of `205 load / (2 (1 - load))`, and the answer in 266.5."""
    found = batched_latency(steps_of(1), load / 205 * 1e6, 1, 400.0)
    assert found.mean_us == pytest.approx(266.5 + 205 * load / (2 * (1 - load)), rel=0.03)


def test_a_query_that_comes_alone_waits_for_its_delay_and_its_batch_of_one() -> None:
    found = batched_latency(steps_of(512), 1.0, 512, 400.0)
    assert found.p50_us == pytest.approx(400 + 1.3 * 205, rel=1e-3)
    assert found.p99_us == pytest.approx(400 + 1.3 * 205, rel=1e-3)


def test_without_a_limit_batches_fill() -> None:
    """At one a second, 512 queries come in 511 s: half of them wait for 255 s or more."""
    found = batched_latency(steps_of(512), 1.0, 512, inf)
    assert found.p50_us == pytest.approx(255.5e6, rel=0.01)
    assert found.mean_us == pytest.approx(255.5e6, rel=0.01)


@pytest.mark.parametrize("load", [0.4, 0.9])
def test_a_limit_that_nobody_waits_for_is_none(load: float) -> None:
    """Full batches are followed at once, others one by one: the same queries, the same answers."""
    steps, rate = BatchSteps((256,), (Service(1_000.0, 1_300.0),)), load * 256 / 1_000 * 1e6
    limited, full = (batched_latency(steps, rate, 256, us) for us in (1e12, inf))
    for name in ("mean_us", "p50_us", "p99_us"):
        assert getattr(limited, name) == pytest.approx(getattr(full, name), rel=1e-9)


def test_batches_larger_than_what_is_usually_followed() -> None:
    """2^21 come in 2.1 s at a million per second: one waits for half of that in the mean."""
    steps = BatchSteps((2**21,), (Service(1e3, 1e3),))
    found = batched_latency(steps, 1e6, 2**21, inf)
    assert found.mean_us == pytest.approx(2**20 + 1e3, rel=0.01)


def test_more_than_is_served_is_unstable() -> None:
    """512 in 2,760 us are 185,507 a second."""
    found = batched_latency(steps_of(512), 200_000.0, 512, 0.0)
    assert found.p99_us is None
    assert "at most 185507 served" in found.note


def test_longer_delays_make_larger_batches_which_leave_more_time() -> None:
    """At a low rate the delay is what is waited; near the most served, nobody waits for it."""
    low, high = 1_000.0, 180_000.0
    p99 = {
        rate: [batched_latency(steps_of(512), rate, 512, us).p99_us for us in (0.0, 2_000.0)]
        for rate in (low, high)
    }
    assert p99[low][1] == pytest.approx(p99[low][0] + 2_000, rel=0.1)
    assert p99[high][1] == pytest.approx(p99[high][0], rel=0.1)


@pytest.mark.parametrize(("rate", "delay_us"), [(0.0, 1.0), (float("nan"), 1.0), (1.0, -1.0)])
def test_what_cannot_be(rate: float, delay_us: float) -> None:
    with pytest.raises(UsageError, match="latency under load"):
        batched_latency(steps_of(16), rate, 16, delay_us)


def test_a_batch_that_would_fill_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="at most 4,194,304 samples"):
        batched_latency(steps_of(MOST_QUERIES + 1), 1.0, MOST_QUERIES + 1, 0.0)
