"""How many distinct rows a number of lookups touches."""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import Floats

_POINTS = 400


def distinct_rows(rows: Floats, lookups: Floats, zipf_alpha: Floats) -> Floats:
    """Expected distinct rows of `lookups` drawn from `rows`, popularity rank r by `r ** -alpha`.

    `alpha` 0 is uniform. The sum over ranks of `1 - (1 - p) ** lookups` is taken as an integral
    over `log r`; all arguments have one value per table.
    """
    uniform = rows * -np.expm1(lookups * np.log1p(-1 / np.maximum(rows, 2.0)))
    found = np.where(rows > 1, uniform, 1.0)
    for place in np.flatnonzero(zipf_alpha > 0):
        found[place] = _zipf_distinct(rows[place], lookups[place], zipf_alpha[place])
    return np.minimum(found, np.minimum(rows, lookups))


def _zipf_distinct(rows: float, lookups: float, alpha: float) -> float:
    """Rank r stands for the interval [r, r + 1), as a generator that inverts the integral draws."""
    edges = np.unique(np.round(np.geomspace(1.0, rows + 1.0, _POINTS)))
    power = (1 - alpha) or 1e-9
    mass = np.expm1(power * np.log(edges)) / power
    ranks = np.diff(edges)
    chance = np.diff(mass) / mass[-1] / ranks
    return float(np.sum(ranks * -np.expm1(lookups * np.log1p(-np.minimum(chance, 1 - 1e-12)))))
