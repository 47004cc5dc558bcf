"""The interval of a step that was not seen, by hand."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.prediction.intervals import (
    PRIOR,
    Prior,
    median_errors,
    student_quantile,
    unseen_errors,
    unseen_step_interval,
)


@pytest.mark.parametrize(
    ("freedom", "bound"), [(1, 6.3138), (2, 2.9200), (5, 2.0150), (30, 1.6973), (1000, 1.6464)]
)
def test_quantiles_are_those_of_tables(freedom: float, bound: float) -> None:
    assert student_quantile(freedom) == pytest.approx(bound, abs=2e-4)


def test_errors_are_logarithms_beside_what_the_others_predict() -> None:
    assert unseen_errors(np.array([110.0]), np.array([100.0])) == pytest.approx([log(1.1)])
    found = median_errors(np.array([100.0, 120, 110]))
    assert found == pytest.approx([log(100 / 115), log(120 / 105), 0])


def test_the_interval_by_hand() -> None:
    prior = Prior(spread=0.1, errors=2, widening=1.5)
    # Two errors of a priori 0.1 and two of 0.2: a mean square of 0.025 with 3 degrees of freedom.
    bound = 1.5 * 2.3534 * 0.025**0.5
    assert unseen_step_interval(100, np.array([0.2, -0.2]), prior) == pytest.approx(
        (100 / exp(bound), 100 * exp(bound)), rel=1e-4
    )
    # Without any error of its own the trace is like others.
    assert prior.bound(np.zeros(0)) == pytest.approx(1.5 * 2.9200 * 0.1, rel=1e-4)


def test_many_errors_outweigh_what_was_known_before() -> None:
    bound = PRIOR.bound(np.full(100_000, 0.2))
    assert bound == pytest.approx(PRIOR.widening * 1.6449 * 0.2, rel=5e-3)


@given(
    st.floats(1e-3, 1e9),
    st.lists(st.floats(-2, 2), max_size=20),
)
def test_no_interval_excludes_its_prediction(predicted_us: float, seen: list[float]) -> None:
    low, high = unseen_step_interval(predicted_us, np.array(seen))
    assert 0 < low < predicted_us < high
    assert high * low == pytest.approx(predicted_us**2)


def test_a_step_that_takes_no_time_says_nothing() -> None:
    seen = unseen_errors(np.array([200.0, 0.0, 110.0]), np.array([0.0, 200.0, 100.0]))
    assert np.isfinite(seen).tolist() == [False, False, True]
    assert PRIOR.bound(seen) == pytest.approx(PRIOR.bound(seen[2:]))
    low, high = unseen_step_interval(100.0, median_errors(np.array([200.0, 0.0])))
    assert 0 < low < 100 < high < np.inf
