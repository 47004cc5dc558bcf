"""Zipf popularity of a table's rows, in classes of ranks, and the rows that independent lookups
touch."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats

STEEPEST = 64.0
"""Beyond it all lookups are of the first row, to the last bit of a float64."""


def zipf_classes(
    rows: Floats, alpha: Floats, *, smooth: bool = False, head: int = 32, tail: int = 64
) -> tuple[Floats, Floats]:
    """Rows and share of lookups of each class of many tables, both `[tables, head + tail]`; one
    class where all are uniform.

    `rows` and `alpha` `[tables]`. Rank r (from 1) is looked up in proportion to
    `r ** -alpha`; `smooth`: in proportion to the integral of `x ** -alpha` from r to
    r + 1. A class of a table with fewer rows is empty. The sum over ranks a to b of a tail class is
    the integral from a - 1/2 to b + 1/2 (midpoint rule; its first neglected term is
    `alpha (alpha + 1) / (24 head^2)` of the sum).
    """
    rows = np.maximum(np.asarray(rows, np.float64), 1.0)[:, None]
    exponent = np.minimum(np.asarray(alpha, np.float64), STEEPEST)[:, None]
    if not exponent.any():
        return rows, np.ones_like(rows)
    single = np.minimum(np.arange(1.0, head + 1.0)[None, :], rows)
    places = np.arange(1.0, tail + 1.0)[None, :] / tail
    beyond = head * (np.maximum(rows, head) / head) ** places
    ends = np.concatenate([single, np.minimum(beyond, rows)], axis=1)
    begins = np.concatenate([np.zeros_like(rows), ends[:, :-1]], axis=1)
    counts = ends - begins
    offset = 1.0 if smooth else 0.5
    weight = _integral(begins + offset, ends + offset, exponent)
    if not smooth:
        weight[:, :head] = counts[:, :head] * single**-exponent
    return counts, weight / weight.sum(axis=1, keepdims=True)


def _integral(lower: Floats, upper: Floats, alpha: Floats) -> Floats:
    """Of `x ** -alpha` from `lower` to `upper`, without loss of digits near alpha 1."""
    power = 1.0 - alpha
    length = np.log(upper / lower)
    safe = np.where(np.abs(power) < 1e-12, 1.0, power)
    grown = np.where(np.abs(power) < 1e-12, length, np.expm1(safe * length) / safe)
    return np.asarray(lower**power * grown)


def touched_per_class(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """Expected distinct rows of each class that `lookups` independent ones touch:
    `rows (1 - (1 - chance)^lookups)`, `[..., classes]`.

    `rows` and `chance` `[..., classes]`, `lookups` any shape that broadcasts with theirs less the
    classes.
    """
    log_missed = np.log1p(-np.minimum(chance, 1.0 - 1e-16))
    return np.asarray(-rows * np.expm1(np.asarray(lookups, np.float64)[..., None] * log_missed))


def touched_rows(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """The same of all classes together."""
    return np.asarray(np.sum(touched_per_class(rows, chance, lookups), axis=-1))
