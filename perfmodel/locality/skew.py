"""Uniform and Zipf access distributions, in closed form, whatever the number of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import WorkloadError
from perfmodel.locality.popularity import Floats, Popularity, touched_rows

_HEAD, _TAIL = 192, 256
"""Ranks that are a class of their own, and classes that share the others evenly by logarithm."""
_STEEPEST = 10.0
_HALVINGS = 24
"""Of the exponents up to the steepest, down to 1e-6."""


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


def zipf_alpha_of(rows: ArrayLike, lookups: ArrayLike, distinct_rows: ArrayLike) -> Floats:
    """The exponent under which `lookups` into `rows` touch so many `distinct_rows`.

    All of any shape that broadcasts with the others', as is the result. 0 where they touch as many
    as uniform lookups do, or more. By bisection to 1e-6.
    Raises `WorkloadError` where that many rows cannot have been touched.
    """
    tables = np.broadcast_arrays(
        *(np.asarray(x, np.float64) for x in (rows, lookups, distinct_rows))
    )
    size, drawn, distinct = (column.ravel() for column in tables)
    _require_rows(float(size.min(initial=np.inf)))
    cannot = ~((distinct > 0.0) & (distinct <= np.minimum(size, drawn) * (1.0 + 1e-9)))
    if cannot.any():
        at = int(np.argmax(cannot))
        raise WorkloadError(
            f"zipf: {drawn[at]:g} lookups into {size[at]:.0f} rows cannot touch "
            f"{distinct[at]:g} of them"
        )
    low, high = np.zeros_like(size), np.full_like(size, _STEEPEST)
    is_skewed = _zipf_distinct(size, low, drawn) > distinct
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = _zipf_distinct(size, middle, drawn) > distinct
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(is_skewed, 0.5 * (low + high), 0.0).reshape(tables[0].shape)


def _zipf_distinct(rows: Floats, alpha: Floats, lookups: Floats) -> Floats:
    counts, share = zipf_classes(rows, alpha)
    chance = share / np.maximum(counts, 1e-300)
    return touched_rows(counts, chance, lookups)


def _integral(lower: Floats, upper: Floats, alpha: Floats) -> Floats:
    """Of `x ** -alpha` from `lower` to `upper`, without loss of digits near alpha 1."""
    power = 1.0 - alpha
    length = np.log(upper / lower)
    safe = np.where(np.abs(power) < 1e-12, 1.0, power)
    grown = np.where(np.abs(power) < 1e-12, length, np.expm1(safe * length) / safe)
    return np.asarray(lower**power * grown)


def _require_rows(rows: float) -> None:
    if not rows >= 1:
        raise WorkloadError(f"a table of {rows:g} rows cannot be looked up")
