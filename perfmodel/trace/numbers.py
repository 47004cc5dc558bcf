"""Exact parsing of the decimal microseconds that trace files write."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

_PLAIN = b"0123456789-.,"
_FRACTION_DIGITS = 3
_LIMIT_NS = 2**62
_MAX_DIGITS = 18

Token: TypeAlias = bytes | msgspec.Raw


def nanoseconds(tokens: Sequence[Token]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """JSON values in microseconds as int64 nanoseconds, and which of them are numbers.

    Plain decimals (`1712195495519689.047`) are parsed digit by digit, all at once; where another
    spelling occurs, one at a time. Digits below a nanosecond are cut. A value that is no finite
    number within +-146 years gives 0 and False. Each token must be one valid JSON value.
    """
    known = np.ones(len(tokens), np.bool_)
    if not tokens:
        return np.zeros(0, np.int64), known
    text = b",".join(tokens)
    if not text.translate(None, _PLAIN):
        value, is_exact = _plain(text)
        if is_exact:
            return value, known
    value = np.zeros(len(tokens), np.int64)
    for row, token in enumerate(tokens):
        exact = _exact(bytes(token))
        if exact is None:
            known[row] = False
        else:
            value[row] = exact
    return value, known


def _plain(text: bytes) -> tuple[NDArray[np.int64], bool]:
    """Comma-separated plain decimals times 1000, cut to integers; False if one is too large."""
    if b"." not in text:
        value = np.fromstring(text, np.int64, sep=",")
        return value * 10**_FRACTION_DIGITS, _is_small(value, 10**_FRACTION_DIGITS)
    char = np.frombuffer(text, np.uint8)
    end = np.append(np.flatnonzero(char == ord(",")), len(char))
    dot = np.flatnonzero(char == ord("."))
    if len(dot) == len(end) and (end - dot == 1 + _FRACTION_DIGITS).all():
        value = np.fromstring(text.replace(b".", b""), np.int64, sep=",")
        return value, _is_small(value, 1)
    fraction = end.copy()
    """Where each number's fraction begins: at its dot, or at its end."""
    fraction[np.searchsorted(end, dot)] = dot
    width = np.diff(end, prepend=-1)
    place = np.arange(len(char) + 1) - np.repeat(fraction, width)
    is_end = np.zeros(len(char) + 1, np.bool_)
    is_end[end] = True
    keep = (place < 0) | ((place > 0) & (place <= _FRACTION_DIGITS)) | is_end
    value = np.fromstring(char[keep[:-1]].tobytes(), np.int64, sep=",")
    scale = 10 ** (_FRACTION_DIGITS - np.clip(end - fraction - 1, 0, _FRACTION_DIGITS))
    return value * scale, _is_small(value, 10**_FRACTION_DIGITS)


def _is_small(value: NDArray[np.int64], scale: int) -> bool:
    """Whether all values times `scale` are within the limit. Too large integers are saturated."""
    limit = _LIMIT_NS // scale
    return bool(value.min() > -limit and value.max() < limit)


def _exact(token: bytes) -> int | None:
    try:
        number = Decimal(token.decode())  # exact, whatever its length
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or number.adjusted() > _MAX_DIGITS:
        return None
    value_ns = int(Context(prec=len(token) + 4).multiply(number, Decimal(1000)))
    return value_ns if abs(value_ns) < _LIMIT_NS else None
