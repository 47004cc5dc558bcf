"""The largest rate within a 99th percentile, of batches that wait until they are full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UsageError
from perfmodel.prediction import serving
from perfmodel.prediction.serving import Service, Serving


def result(step_us: float, latency_us: float) -> Any:
    return SimpleNamespace(step_us=step_us, latency_us=latency_us)


@given(st.floats(100.0, 1e5), st.floats(1.0, 3.0), st.integers(1, 4096), st.floats(1.1, 20.0))
@settings(max_examples=20)
def test_the_largest_rate_is_at_the_limit(
    period_us: float, depth: float, batch: int, slack: float
) -> None:
    def served(**asked: float) -> Any:
        of = result(period_us, depth * period_us)
        return Serving(None, **asked).served(batch, 1, lambda _: of)

    loads = [(at + 1) / 20 for at in range(19)]
    with mock.patch.object(serving, "QUERIES", 2**16):  # the search is the same over fewer
        least_us = min(served(rate_per_s=load * batch / period_us * 1e6).p99_us for load in loads)
        most = served(p99_us=slack * least_us)
        assert most.p99_us <= slack * least_us
        beyond = served(rate_per_s=1.001 * most.rate_per_s)
        assert beyond.p99_us is None or beyond.p99_us > slack * least_us


def test_a_limit_below_one_batch_is_met_by_no_rate() -> None:
    found = Serving(None, p99_us=150.0).served(8, 1, lambda _: result(100.0, 200.0))
    assert found.p99_us is None
    assert "not 99 % within 150.0 us: " in found.note


def test_that_batches_wait_to_fill_is_said_where_it_is_most_of_the_time() -> None:
    """At one a second, 8 come in 7 s: 3.5 s on average; in batches of one nobody waits."""
    asked = Serving(None, 1.0)
    load = asked.served(8, 1, lambda _: result(100.0, 200.0))
    (remark,) = asked.remarks(load, 8)
    assert remark.startswith("samples wait 3.50 s on average until batches of 8 are full")
    assert "--max-delay-ms" in remark
    assert not asked.remarks(asked.served(1, 1, lambda _: result(100.0, 200.0)), 1)
    limited = Serving(50.0, 1.0)
    assert not limited.remarks(limited.served(8, 1, lambda _: result(100.0, 200.0)), 8)


@pytest.mark.parametrize(("p99_us", "batch"), [(4_500.0, 2048), (1_200.0, 512)])
def test_the_best_of_all_batches_is_found_without_a_search_in_each(
    p99_us: float, batch: int
) -> None:
    asked, sizes = Serving(500.0, p99_us=p99_us), (8, 32, 128, 512, 2048)
    services = tuple(Service(10.0 + size, 10.0 + size) for size in sizes)
    with mock.patch.object(serving, "QUERIES", 2**16):
        alone = [asked._best(serving.BatchSteps(sizes, services), it, p99_us, 0.0) for it in sizes]
        looked = Mock(side_effect=serving.batched_latency)
        with mock.patch.object(serving, "batched_latency", looked):
            found = asked.served(2048, 1, lambda size: result(10.0 + size, 10.0 + size))
    best = max((it for it in alone if it.p99_us <= p99_us), key=lambda it: it.rate_per_s)  # type: ignore[operator]
    assert found.batch == best.batch == batch
    assert found.rate_per_s == pytest.approx(best.rate_per_s, rel=2e-3)
    assert looked.call_count < 30


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UsageError, match="-1: expected milliseconds above 0"):
        Serving(None, p99_us=-1_000.0)
