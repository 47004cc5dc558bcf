"""How many distinct rows a number of lookups touches."""

from __future__ import annotations

import numpy as np

from perfmodel.locality.popularity import touched_per_class
from perfmodel.locality.skew import zipf_classes
from perfmodel.ops.spec import Floats


def distinct_rows(rows: Floats, lookups: Floats, zipf_alpha: Floats) -> Floats:
    """Expected distinct rows of `lookups` drawn from `rows`, popularity rank r by `r ** -alpha`.

    `alpha` 0 is uniform. Rank r stands for the interval from r to r + 1, as for generators that
    invert the integral; all arguments have one value per table.
    """
    counts, share = zipf_classes(rows, zipf_alpha, smooth=True)
    touched = touched_per_class(counts, share / np.maximum(counts, 1e-300), lookups).sum(axis=1)
    return np.asarray(np.minimum(touched, np.minimum(rows, lookups)))
