"""Closed forms of an LRU cache's hit rates against exact replays of random cases.

`python benchmarks/locality_cases.py SEED COUNT [small]` draws so many cases (Zipf rows, or two to
four steps; any share of them cached; any batch) from that seed on, prints the median, the 90th
percentile and the worst absolute error of the share of lookups that find their row and of the
distinct rows that need not be fetched, and the worst cases. `small`: at most 400 rows and eight
places. 110 cases take one to eight minutes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.streams import draw_lookups, last_lookups, replay
from perfmodel.embedding import Popularity, TableAccess, steady_use, zipf


@dataclass(frozen=True)
class Case:
    """A cache of `places` rows, replayed with so many lookups."""

    popularity: Popularity
    places: int
    batch: int
    lookups: int


def steps(generator: np.random.Generator, rows: int) -> Popularity:
    """Two to four kinds of rows, each looked up alike."""
    kinds = int(generator.integers(2, 5))
    parts = np.maximum(np.round(generator.dirichlet(np.ones(kinds)) * rows), 1.0)
    return Popularity(parts, generator.dirichlet(np.ones(kinds)))


def any_case(generator: np.random.Generator) -> Case:
    """200 to 20,000 rows, one row to all but one of them cached."""
    kind = generator.integers(4)
    rows = int(np.exp(generator.uniform(np.log(200), np.log(20_000))))
    if kind < 3:
        alpha = float(generator.uniform(0.3, 1.5))
        popularity = zipf(rows, alpha)
    else:
        popularity = steps(generator, rows)
    rows = round(popularity.total_rows)
    kind = generator.random()
    if kind < 0.4:
        places = int(np.exp(generator.uniform(0, np.log(64))))
    elif kind < 0.75:
        places = int(np.exp(generator.uniform(np.log(8), np.log(rows))))
    else:
        places = int(rows * generator.uniform(0.5, 0.99))
    places = max(1, min(places, rows - 1))
    batch = int(np.exp(generator.uniform(np.log(16), np.log(16_384))))
    return Case(popularity, places, batch, 1 << 19)


def small_case(generator: np.random.Generator) -> Case:
    """3 to 400 rows, one to eight of them cached."""
    rows = int(np.exp(generator.uniform(np.log(3), np.log(400))))
    if generator.random() < 0.75:
        popularity = zipf(rows, float(generator.uniform(0.3, 2.0)))
    else:
        popularity = steps(generator, rows)
    places = int(generator.integers(1, min(9, round(popularity.total_rows))))
    return Case(popularity, places, int(generator.integers(1, 64)), 1 << 18)


def errors(case: Case, seed: int) -> tuple[float, float]:
    """Of all lookups, and of each batch's distinct rows."""
    filled = last_lookups(case.popularity, seed=7 * seed)
    drawn = draw_lookups(case.popularity, case.lookups * 5 // 4, seed=1_000 * seed)
    rows = np.concatenate([filled, drawn])
    warm_up = len(rows) - case.lookups
    found, fetched = replay(rows, case.places, batch_lookups=case.batch, warm_up=warm_up)
    table = TableAccess(popularity=case.popularity, lookups=case.batch, row_bytes=1.0)
    told = steady_use([table], case.places)
    missed = float(told.fetched_rows[0] - fetched.mean()) / float(told.distinct_rows[0])
    return float(told.hit_frac[0] - found.mean()), missed


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    draw = small_case if "small" in sys.argv[3:] else any_case
    cases = [draw(np.random.default_rng(seed)) for seed in range(first, first + count)]
    found = np.array([errors(case, first + number) for number, case in enumerate(cases)])
    for part, values in zip(("lookups", "distinct rows"), np.abs(found).T, strict=True):
        middle, high = np.median(values), np.quantile(values, 0.9)
        print(f"{part}: median {middle:.4f} 90 % {high:.4f} worst {values.max():.4f}")
    for place in np.argsort(-np.abs(found).max(axis=1))[:6]:
        case = cases[place]
        print(f"{found[place]} {case.places} places, {case.batch} lookups, {case.popularity}")


if __name__ == "__main__":
    main()
