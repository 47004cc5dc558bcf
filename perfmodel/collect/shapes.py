"""Informative shapes: any beginning of a sequence covers its ranges evenly, on a log scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

ALIGNMENT = 64
_PRIMES = (2, 3, 5, 7)
_MORE_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


def halton(index: int, base: int) -> float:
    """Element `index` (from 0) of the van der Corput sequence of `base`, in (0, 1).

    Source: Halton 1960; several bases together fill a box with low discrepancy.
    """
    result, fraction, index = 0.0, 1.0, index + 1
    while index:
        fraction /= base
        index, digit = divmod(index, base)
        result += fraction * digit
    return result


def kronecker(index: int, dims: int) -> tuple[float, ...]:
    """Element `index` (from 0) of an additive recurrence in at most ten dimensions, in (0, 1).

    Its steps are the square roots of primes, which no short period comes near: it fills a box of
    many dimensions evenly, where Halton points of large bases line up.
    Source: Richtmyer 1951; Niederreiter 1978, "Quasi-Monte Carlo methods".
    """
    return tuple((0.5 + (index + 1) * prime**0.5) % 1 for prime in _MORE_PRIMES[:dims])


def log_between(low: float, high: float, fraction: float) -> float:
    """The value at `fraction` of the way from `low` to `high` on a log scale."""
    return float(low * (high / low) ** fraction)


def log_points(ranges: dict[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Endless points in the box `ranges` (inclusive), log-uniform, at most four dims.

    Every second point is aligned: its dims above the alignment are multiples of it. The others
    are as they fall, which is rarely a multiple of anything.
    """
    for index in count():
        point = {}
        for base, (name, (low, high)) in zip(_PRIMES, ranges.items(), strict=False):
            value = round(log_between(low, high, halton(index, base)))
            if index % 2 == 0 and value > ALIGNMENT:
                value = round(value / ALIGNMENT) * ALIGNMENT
            point[name] = min(max(value, low), high)
        yield point
