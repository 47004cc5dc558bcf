"""Microseconds in files become nanoseconds exactly."""

from __future__ import annotations

import json
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.trace.event_columns import nanoseconds, rounded_ns

LIMIT_NS = 2**62

whole = st.integers(-(10**19), 10**19).map(str)
fixed = st.builds("{}.{:03d}".format, st.integers(0, 2 * 10**15), st.integers(0, 999))
decimal = st.from_regex(
    r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
float64 = st.floats(allow_nan=False, allow_infinity=False).map(repr)
number = st.one_of(whole, fixed, decimal, float64)


def exact(token: str) -> int | None:
    """The slow way."""
    with localcontext(prec=2000):
        is_far = Decimal(token) and Decimal(token).adjusted() >= 25
        value_ns = LIMIT_NS if is_far else math.trunc(Decimal(token) * 1000)
    return value_ns if abs(value_ns) < LIMIT_NS else None


def parsed(tokens: list[str]) -> list[int | None]:
    value_ns, known = nanoseconds([token.encode() for token in tokens])
    assert not value_ns[~known].any()
    return [int(v) if k else None for v, k in zip(value_ns, known, strict=True)]


@pytest.mark.parametrize(
    ("token", "value_ns"),
    [
        ("1712195495519689.047", 1712195495519689047),
        ("1712195495519689", 1712195495519689000),
        ("0", 0),
        ("0.001", 1),
        ("0.0019", 1),
        ("-0.5", -500),
        ("-0.0019", -1),
        ("1e3", 1_000_000),
        ("1.5E-2", 15),
        ("1e-999999999", 0),
        ("1." + "9" * 60, 1999),
        ("4611686018427387.903", 2**62 - 1),
    ],
)
def test_known_values(token: str, value_ns: int) -> None:
    assert parsed([token]) == [value_ns]
    # Beside one of every other spelling, so that each way of parsing meets it.
    for other in ("7", "7.000", "7.12345", "7e0"):
        assert parsed([token, other])[0] == value_ns
        assert parsed([other, token])[1] == value_ns


NO_TIMES = (
    *('"5"', '""', "null", "true", "[]", "[1]", "[1,2]", "{}", '"Infinity"', '"NaN"', '"1_0"'),
    *("1e400", "1e99999999999999999999", "9" * 30, "-" + "9" * 30, "9" * 5000),
    "4611686018427387.904",
)


@pytest.mark.parametrize("token", NO_TIMES)
def test_what_is_no_time(token: str) -> None:
    assert parsed([token]) == [None]
    for other, value_ns in (("7", 7000), ("7.000", 7000), ("7.5", 7500), ("7e0", 7000)):
        assert parsed([other, token, other]) == [value_ns, None, value_ns]


def test_nothing() -> None:
    value_ns, known = nanoseconds([])
    assert len(value_ns) == len(known) == 0


@given(st.lists(number, max_size=6))
def test_any_numbers_are_exact(tokens: list[str]) -> None:
    assert parsed(tokens) == [exact(token) for token in tokens]


@given(st.lists(fixed, min_size=1, max_size=6))
def test_three_digits_are_exact(tokens: list[str]) -> None:
    assert parsed(tokens) == [int(Decimal(token) * 1000) for token in tokens]


@given(st.lists(st.integers(-(2**42) * 1000, 2**42 * 1000), min_size=1, max_size=6))
def test_few_digits_are_exact(values_ns: list[int]) -> None:
    """Also on both sides of where a float64 no longer tells nanoseconds apart."""
    tokens = [f"{Decimal(value) / 1000:f}" for value in values_ns]
    assert parsed([*tokens, "0.5"]) == [*values_ns, 500]


@given(st.lists(st.floats(0, 4e15), min_size=1, max_size=6))
def test_floats_as_python_writes_them(values: list[float]) -> None:
    tokens = [json.dumps(value) for value in values]
    assert parsed(tokens) == [exact(token) for token in tokens]


@given(st.lists(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1), min_size=1, max_size=6))
def test_floats_hold_nanoseconds_for_a_hundred_days(values_ns: list[int]) -> None:
    values_us = np.array([float(f"{Decimal(value) / 1000:f}") for value in values_ns])
    assert rounded_ns(values_us).tolist() == values_ns


def test_whole_microseconds_for_a_century() -> None:
    assert rounded_ns(np.array([2.0**52, -(2.0**52)])).tolist() == [2**52 * 1000, -(2**52) * 1000]
