"""Coverage of some files of reuse histograms, predicted from the others.

`python benchmarks/lookup_coverage.py LOCALITY.csv [HALVES]` prints, for each way to halve the files
and for so many random halves (200), the worst error of the share of lookups that the most used x %
of a held-out file's rows take, over x and files: by the mean of the fitted files, by the one
nearest in lookups, and by that one with the held-out file's distinct rows (`borrowed`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.streams import read_histograms
from perfmodel.base.arrays import Floats
from perfmodel.embedding import Popularity, ReuseHistogram
from perfmodel.errors import WorkloadError

HOT_FRAC = np.unique(np.concatenate([np.geomspace(1e-6, 1.0, 61), np.linspace(0.01, 1.0, 100)]))
Files = Sequence[ReuseHistogram]


def popularity_of_similar(histograms: Files, lookups: float, distinct_rows: float) -> Popularity:
    """The popularity within a batch of so many `lookups` of so many `distinct_rows`.

    The histogram nearest in lookups lends its shape: as many of the rows to each of its bins, and
    the lookups that a row has beyond its first grow in all bins alike, so that those of the batch
    come out. As `ReuseHistogram.popularity`, it knows no rows but those of the batch.

    Raises `WorkloadError` where there is no histogram, where no row of the nearest is looked up
    twice, or where there are more rows than lookups.
    """
    known = list(histograms)
    if not known:
        raise WorkloadError("borrowed: no reuse histogram")
    if not 0.0 < distinct_rows <= lookups < np.inf:
        raise WorkloadError(f"borrowed: {lookups:g} lookups of {distinct_rows:g} distinct rows")
    nearest = min(known, key=lambda each: abs(np.log(each.lookups / lookups)))
    repeats = nearest.lookups - nearest.distinct_rows
    if not repeats > 0.0:
        raise WorkloadError(f"borrowed: reuse histogram {nearest.name!r}: no row comes twice")
    rows = nearest.rows * (distinct_rows / nearest.distinct_rows)
    beyond = (nearest.bin_lookups - nearest.rows) * ((lookups - distinct_rows) / repeats)
    return Popularity(rows, (rows + beyond) / lookups)


def covered(batch: ReuseHistogram) -> Floats:
    """By the most used rows of a batch, `[shares of rows]`."""
    return batch.popularity().covered_frac(HOT_FRAC * batch.distinct_rows)


def mean(fitted: Files, other: ReuseHistogram) -> Floats:
    """Of the fitted files' coverage."""
    return np.asarray(np.mean([covered(each) for each in fitted], axis=0))


def nearest(fitted: Files, other: ReuseHistogram) -> Floats:
    """That of the file nearest in lookups."""
    return covered(min(fitted, key=lambda each: abs(np.log(each.lookups / other.lookups))))


def lent(fitted: Files, other: ReuseHistogram) -> Floats:
    """The same where the held-out file's distinct rows are known."""
    rows = other.distinct_rows
    return popularity_of_similar(fitted, other.lookups, rows).covered_frac(HOT_FRAC * rows)


ESTIMATORS: dict[str, Callable[[Files, ReuseHistogram], Floats]] = {
    each.__name__: each for each in (mean, nearest, lent)
}


def worst(fitted: Files, held_out: Files) -> Floats:
    """Over files and shares of rows, `[estimators]`."""
    return np.array(
        [
            max(float(np.abs(told(fitted, each) - covered(each)).max()) for each in held_out)
            for told in ESTIMATORS.values()
        ]
    )


def by_order(files: Files) -> dict[str, tuple[Files, Files]]:
    """Halves (fitted, held out) by place in the file and by name."""
    named = sorted(files, key=lambda each: each.name)
    middle = len(files) // 2
    return {
        f"{name} of {order}": (fitted, held_out)
        for order, listed in (("the file", files), ("their names", named))
        for name, fitted, held_out in (
            ("even", listed[0::2], listed[1::2]),
            ("odd", listed[1::2], listed[0::2]),
            ("first half", listed[:middle], listed[middle:]),
            ("second half", listed[middle:], listed[:middle]),
        )
    }


def main() -> None:
    files = list(read_histograms(sys.argv[1]).values())
    draws = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    print(f"{'fitted':30}" + "".join(f"{name:>18}" for name in ESTIMATORS))
    for name, (fitted, held_out) in by_order(files).items():
        print(f"{name:30}" + "".join(f"{error:18.4f}" for error in worst(fitted, held_out)))
    found = []
    for seed in range(draws):
        drawn = [files[place] for place in np.random.default_rng(seed).permutation(len(files))]
        middle = (len(files) + seed % 2) // 2
        found.append(worst(drawn[:middle], drawn[middle:]))
    for name, of in (("median", np.median), ("90 %", lambda e, axis: np.quantile(e, 0.9, axis))):
        print(f"{name + ' of random halves':30}" + "".join(f"{e:18.4f}" for e in of(found, axis=0)))
    print(f"{'worst of random halves':30}" + "".join(f"{e:18.4f}" for e in np.max(found, axis=0)))


if __name__ == "__main__":
    main()
