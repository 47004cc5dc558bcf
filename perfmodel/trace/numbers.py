"""Exact parsing of the decimal microseconds that trace files write."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

_FRACTION_DIGITS = 3
_LIMIT_NS = 2**62


def nanoseconds(tokens: list[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """JSON number tokens in microseconds as int64 nanoseconds, and which of them are numbers.

    Plain decimals (`1712195495519689.047`) are parsed digit by digit, column-wise; exponents and
    other rare spellings one at a time. Digits below a nanosecond are cut. A token that is no
    finite number within +-146 years gives 0 and False.
    """
    if not tokens:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    text = np.array(tokens, dtype=np.bytes_)
    width = text.dtype.itemsize
    char = text.view(np.uint8).reshape(len(tokens), width).T
    is_digit = (char >= ord("0")) & (char <= ord("9"))
    is_dot = char == ord(".")
    used = char != 0
    length = used.sum(axis=0)
    dot = np.where(is_dot.any(axis=0), is_dot.argmax(axis=0), length)
    negative = char[0] == ord("-")
    plain = (
        (is_digit.sum(axis=0) + is_dot.sum(axis=0) + negative == length)
        & (is_dot.sum(axis=0) <= 1)
        & (dot - negative >= 1)
        & (dot - negative <= 16)
    )
    value = np.zeros(len(tokens), np.int64)
    fraction_digits = np.clip(length - dot - 1, 0, _FRACTION_DIGITS)
    for column in range(min(width, int(dot[plain].max(initial=0)) + 1 + _FRACTION_DIGITS)):
        take = plain & is_digit[column] & (column <= dot + _FRACTION_DIGITS)
        value = np.where(take, value * 10 + (char[column].astype(np.int64) - ord("0")), value)
    value *= 10 ** (_FRACTION_DIGITS - fraction_digits)
    value = np.where(negative, -value, value)
    known = plain.copy()
    for row in np.flatnonzero(~plain):
        exact = _exact(tokens[row])
        if exact is not None:
            value[row], known[row] = exact, True
    value[~known] = 0
    return value, known


def _exact(token: bytes) -> int | None:
    try:
        number = Decimal(token.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or number.adjusted() > 18:
        return None
    value_ns = int(number * 1000)
    return value_ns if abs(value_ns) < _LIMIT_NS else None
