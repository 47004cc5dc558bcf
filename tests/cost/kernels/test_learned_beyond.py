"""What learned models say where trees cannot: beyond the largest rows, at rare alignments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel import hardware
from perfmodel.cost.learned.corrections import (
    Extension,
    Gains,
    Growth,
    carried_log_factors,
    extrapolated_log_factors,
    line_of,
    places_of,
)
from perfmodel.cost.learned.devices import describe

ONE, OTHER = (describe(hardware.device(name)) for name in ("t4", "v100-pcie-32gb"))


def test_the_rate_is_the_slope_apart_from_a_fixed_cost() -> None:
    base = np.linspace(100, 1000, 50)
    assert line_of(base, 40 + 1.25 * base) == pytest.approx((40.0, 1.25), rel=1e-6)


def test_one_wild_row_does_not_move_the_rate() -> None:
    base = np.linspace(100, 1000, 50)
    kernel = 40 + 1.25 * base
    kernel[7] *= 5
    assert line_of(base, kernel)[1] == pytest.approx(1.25, rel=0.02)


def test_time_goes_on_along_a_line_beyond_the_largest_row() -> None:
    growth = Growth(ONE, most_work=1000.0, per_base=1.25)
    at_most = math.log(1.25 + 40 / 1000)
    factors = extrapolated_log_factors(
        np.full(3, at_most), np.array([500.0, 1000.0, 4000.0]), growth, 1.0
    )
    assert factors[:2] == pytest.approx([at_most, at_most])
    assert np.exp(factors[2]) * 4000 == pytest.approx(40 + 1.25 * 4000)


def test_without_trust_the_trees_answer_stays() -> None:
    growth = Growth(ONE, 10.0, 3.0)
    factors = extrapolated_log_factors(np.array([0.5]), np.array([1e6]), growth, 0.0)
    assert factors.tolist() == [0.5]


def test_the_most_similar_device_says_how_it_goes_on() -> None:
    one, other = Growth(ONE, 10.0, 3.0), Growth(OTHER, 10.0, 2.0)
    assert Extension(1.0, (other, one)).on(ONE) == one


def test_what_multiprocessors_take_beside_the_base_hides_behind_a_slower_memory() -> None:
    """Twice the base where both are alike, and on a chip whose base is no memory's. An eighth of
    the bandwidth for as much arithmetic leaves an eighth of what showed, of shorter kernels too;
    where the memory is faster nothing is changed."""
    slower = {**ONE, "bytes_per_clock": ONE["bytes_per_clock"] - math.log(8.0)}
    factors, on_chip = np.log([2.0, 2.0, 1.0, 0.2]), np.array([0.0, 1.0, 0.0, 0.0])
    there = np.exp(carried_log_factors(factors, on_chip, ONE, slower))
    beside = (2.0**1.5 - 1.0) / 8.0**1.5
    assert there == pytest.approx([(1.0 + beside) ** (1.0 / 1.5), 2.0, 1.0, 0.9])
    for faster in (ONE, {**ONE, "bytes_per_clock": ONE["bytes_per_clock"] + 1.0}):
        assert carried_log_factors(factors, on_chip, ONE, faster) == pytest.approx(factors)


def test_gains_are_the_devices_own_where_known_else_the_median() -> None:
    gains = Gains("aligned", {"mm": {0: -0.01, 1: -0.02, 2: -0.06}})
    assert gains.on((2,)) == {"mm": -0.06}
    assert gains.on(()) == {"mm": -0.02}


def test_a_device_is_found_by_its_figures() -> None:
    assert places_of(OTHER, [ONE, OTHER]) == (1,)
    assert places_of(OTHER, [ONE]) == ()
