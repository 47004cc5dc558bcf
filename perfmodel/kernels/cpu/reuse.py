"""How many distinct rows a number of lookups touches, and how many lookups the most popular get."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfmodel.locality.popularity import touched_per_class
from perfmodel.locality.skew import zipf_classes
from perfmodel.ops.spec import Floats

MAX_ALPHA = 3.0
_HALVINGS = 12


def distinct_rows(rows: Floats, lookups: Floats, zipf_alpha: Floats) -> Floats:
    """Expected distinct rows of `lookups` drawn from `rows`, popularity rank r by `r ** -alpha`.

    `alpha` 0 is uniform. Rank r stands for the interval from r to r + 1, as for generators that
    invert the integral; all arguments have one value per table.
    """
    counts, share = zipf_classes(rows, zipf_alpha, smooth=True)
    touched = touched_per_class(counts, share / np.maximum(counts, 1e-300), lookups).sum(axis=1)
    return np.asarray(np.minimum(touched, np.minimum(rows, lookups)))


def hit_frac(held: Floats, rows: Floats, distinct: Floats, alpha: Floats) -> Floats:
    """Share of lookups among the `held` most popular rows of which `distinct` occur.

    That of the popularity (`alpha`), and of the lookups of rows too rare to count on, evenly.
    """
    share = np.minimum(held / np.maximum(distinct, 1.0), 1.0)
    known = popular_frac(np.minimum(held, distinct), rows, alpha)
    return known + (1 - popular_frac(distinct, rows, alpha)) * share


def skew_of(rows: Floats, lookups: Floats, distinct: Floats) -> Floats:
    """The Zipf exponent at which `lookups` of `rows` touch about `distinct` of them."""
    told = zip(rows.tolist(), lookups.tolist(), distinct.tolist(), strict=True)
    return np.array([_skew(*each) for each in told])


@lru_cache(maxsize=1 << 14)
def _skew(rows: float, lookups: float, distinct: float) -> float:
    one, many, low, high = np.array([rows]), np.array([lookups]), 0.0, MAX_ALPHA
    if rows < 2 or distinct >= distinct_rows(one, many, np.zeros(1))[0]:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if distinct_rows(one, many, np.array([middle]))[0] > distinct:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def popular_frac(top: Floats, rows: Floats, alpha: Floats) -> Floats:
    """Share of lookups of the `top` most popular rows: the integral that a generator inverts."""
    power = np.where(np.abs(1 - alpha) < 1e-9, 1e-9, 1 - alpha)
    found: Floats = np.expm1(power * np.log1p(top)) / np.expm1(power * np.log1p(rows))
    return np.minimum(found, 1.0)
