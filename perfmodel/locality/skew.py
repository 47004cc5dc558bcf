"""Uniform and Zipf access distributions, in closed form, whatever the number of rows."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.popularity import Floats, Popularity, touched_rows

_HEAD, _TAIL = 192, 256
"""Ranks that are a class of their own, and classes that share the others evenly by logarithm."""
_STEPS = 60
_STEEPEST = 10.0


def uniform(rows: int) -> Popularity:
    """Every one of `rows` rows is looked up alike."""
    _require_rows(rows)
    return Popularity(np.array([float(rows)]), np.ones(1))


def zipf(rows: int, alpha: float, shift: float = 0.0, *, smooth: bool = False) -> Popularity:
    """Row of rank r (from 1) is looked up in proportion to `(r + shift) ** -alpha`.

    `shift` is that of Zipf and Mandelbrot (0: Zipf). `smooth` is what generators draw that invert
    an integral (as this project's do): in proportion to that of `x ** -alpha` from r to r + 1. The
    most popular rows are summed one by one, the others integrated: within 1e-4 of the full sums.

    Raises `WorkloadError` where there are no rows, or `alpha` is not within 0 to 10.
    """
    _require_rows(rows)
    if not 0.0 <= alpha <= _STEEPEST or not 0.0 <= shift < rows:
        raise WorkloadError(
            f"zipf: alpha {alpha:g}, shift {shift:g}: 0 to {_STEEPEST:g}, 0 to rows"
        )
    if alpha == 0.0:
        return uniform(rows)
    size, exponent = np.array([float(rows)]), np.array([alpha])
    counts, share = zipf_classes(size, exponent, shift, smooth=smooth, head=_HEAD, tail=_TAIL)
    return Popularity(counts[0], share[0])


def zipf_classes(
    rows: Floats,
    alpha: Floats,
    shift: float = 0.0,
    *,
    smooth: bool = False,
    head: int = 32,
    tail: int = 64,
) -> tuple[Floats, Floats]:
    """Rows and share of lookups of each class of many tables, both `[tables, head + tail]`.

    `rows` and `alpha` `[tables]`, the rest as in `zipf`. A class of a table with fewer rows is
    empty. The sum over ranks a to b of a tail class is the integral from a - 1/2 to b + 1/2
    (midpoint rule; its first neglected term is `alpha (alpha + 1) / (24 head^2)` of the sum).
    """
    rows = np.maximum(np.asarray(rows, np.float64), 1.0)[:, None]
    exponent = np.asarray(alpha, np.float64)[:, None]
    single = np.minimum(np.arange(1.0, head + 1.0)[None, :], rows)
    places = np.arange(1.0, tail + 1.0)[None, :] / tail
    beyond = head * (np.maximum(rows, head) / head) ** places
    ends = np.concatenate([single, np.minimum(beyond, rows)], axis=1)
    begins = np.concatenate([np.zeros_like(rows), ends[:, :-1]], axis=1)
    counts = ends - begins
    offset = shift + (1.0 if smooth else 0.5)
    weight = _integral(begins + offset, ends + offset, exponent)
    if not smooth:
        weight[:, :head] = counts[:, :head] * (single + shift) ** -exponent
    return counts, weight / weight.sum(axis=1, keepdims=True)


def zipf_alpha_of(rows: int, lookups: float, distinct_rows: float) -> float:
    """The exponent under which `lookups` into `rows` touch so many `distinct_rows`.

    0 where they touch as many as uniform lookups do, or more. By bisection to 1e-6.
    Raises `WorkloadError` where that many rows cannot have been touched.
    """
    _require_rows(rows)
    if not 0.0 < distinct_rows <= min(rows, lookups) * (1.0 + 1e-9):
        raise WorkloadError(
            f"zipf: {lookups:g} lookups into {rows} rows cannot touch {distinct_rows:g} of them"
        )
    low, high = 0.0, _STEEPEST
    if _zipf_distinct(rows, low, lookups) <= distinct_rows:
        return 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        above = _zipf_distinct(rows, middle, lookups) > distinct_rows
        low, high = (middle, high) if above else (low, middle)
        if high - low < 1e-6:
            break
    return 0.5 * (low + high)


def _zipf_distinct(rows: int, alpha: float, lookups: float) -> float:
    counts, share = zipf_classes(np.array([float(rows)]), np.array([alpha]))
    chance = share / np.maximum(counts, 1e-300)
    return float(touched_rows(counts, chance, np.array([lookups]))[0])


def _integral(lower: Floats, upper: Floats, alpha: Floats) -> Floats:
    """Of `x ** -alpha` from `lower` to `upper`, without loss of digits near alpha 1."""
    power = 1.0 - alpha
    length = np.log(upper / lower)
    safe = np.where(np.abs(power) < 1e-12, 1.0, power)
    grown = np.where(np.abs(power) < 1e-12, length, np.expm1(safe * length) / safe)
    return np.asarray(lower**power * grown)


def _require_rows(rows: int) -> None:
    if not rows >= 1:
        raise WorkloadError(f"a table of {rows} rows cannot be looked up")
