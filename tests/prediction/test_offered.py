"""Latency under an offered rate, against known queues and a simulation of events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UsageError
from perfmodel.prediction.serving import (
    MIN_PER_S,
    LoadLatency,
    Service,
    latency_under,
)


def simulated(
    service: Service, rate_per_s: float, queries_per_batch: int = 1, seed: int = 1
) -> np.ndarray:
    """Latency of many queries: a batch starts when it is full and the one before is done."""
    rng = np.random.default_rng(seed)
    batches = 1_000_000 // queries_per_batch
    arrived = np.cumsum(rng.exponential(1e6 / rate_per_s, batches * queries_per_batch))
    ready = arrived[queries_per_batch - 1 :: queries_per_batch]
    before = np.arange(batches) * service.period_us
    start = before + np.maximum.accumulate(ready - before)
    return np.repeat(start + service.latency_us, queries_per_batch) - arrived


def test_an_idle_server_takes_its_latency() -> None:
    found = latency_under(Service(100.0, 250.0), 1e-3)
    assert found.p99_us == pytest.approx(250.0)


def test_rates_below_all_use_are_refused() -> None:
    service = Service(100.0, 250.0)
    found = latency_under(service, MIN_PER_S, queries_per_batch=10**4)
    assert found.mean_us == pytest.approx(5e109, rel=0.02)
    with pytest.raises(UsageError, match="a rate of 1e-300 per second"):
        latency_under(service, 1e-300)


def test_fixed_service_has_the_mean_of_pollaczek_and_khinchine() -> None:
    assert latency_under(Service(100.0, 100.0), 8_000.0).mean_us == pytest.approx(
        100 + 200, rel=0.03
    )


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_single_queries_against_events(load: float) -> None:
    service = Service(100.0, 300.0)
    found, events = latency_under(service, load * 1e4), simulated(service, load * 1e4)
    assert found.mean_us == pytest.approx(events.mean(), rel=0.08)
    assert found.p99_us == pytest.approx(np.quantile(events, 0.99), rel=0.12)


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_batches_that_fill_against_events(load: float) -> None:
    service = Service(100.0, 300.0)
    rate = load * 1e4 * 32
    found, events = latency_under(service, rate, queries_per_batch=32), simulated(service, rate, 32)
    assert found.mean_us == pytest.approx(events.mean(), rel=0.05)
    assert found.p99_us == pytest.approx(np.quantile(events, 0.99), rel=0.12)


def test_too_much_is_said() -> None:
    found = latency_under(Service(100.0, 100.0), 20_000.0)
    assert found.p99_us is None
    assert found.note == "unstable: 20000 queries per second offered, at most 10000 served"
    assert found.to_dict()["mean_us"] is None


@given(st.floats(0.01, 0.98), st.floats(0.01, 0.98))
@settings(max_examples=10, deadline=None)
def test_more_load_is_never_faster(one: float, other: float) -> None:
    low, high = sorted((one, other))
    service = Service(100.0, 100.0)

    def at(load: float) -> LoadLatency:
        return latency_under(service, load * 1e4)

    assert at(low).p99_us <= at(high).p99_us * (1 + 1e-6)  # type: ignore[operator]
    assert at(high).p50_us <= at(high).p99_us  # type: ignore[operator]


@pytest.mark.parametrize("batch", [200_000, 10**8])
def test_of_a_large_batch_queries_wait_half_of_what_it_takes_to_fill(batch: int) -> None:
    found = latency_under(Service(1e5, 1e5), batch * 7.5, queries_per_batch=batch)
    assert found.mean_us == pytest.approx(1e6 / 7.5 / 2 + 1e5, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_cannot_be(rate: float) -> None:
    with pytest.raises(UsageError, match="rate"):
        latency_under(Service(1.0, 1.0), rate)


def test_batches_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        latency_under(Service(1.0, 1.0), 1.0, queries_per_batch=0)
    with pytest.raises(UsageError, match="a batch of"):
        Service(0.0, 1.0)
