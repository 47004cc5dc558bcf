"""Closed forms of cache hit rates against exact replays of random cases, off the grid.

`python benchmarks/locality_cases.py POLICY SEED COUNT [small]` draws so many cases (Zipf rows, or
two to four steps; any share of them cached; any batch) from that seed on, prints the median, the
90th percentile and the worst absolute error of the share of lookups that find their row and of the
distinct rows that need not be fetched, and the worst cases. `small`: at most 400 rows and eight
places. Rows of sets have other numbers in each of some replays, so that other ones meet.
POLICY is lru or set_associative; 110 cases take one to eight minutes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.streams import last_lookups
from perfmodel.embedding import (
    POLICIES,
    Cache,
    Policy,
    Popularity,
    SetAssociativeLru,
    TableAccess,
    draw_lookups,
    replay,
    steady_use,
    zipf,
)


@dataclass(frozen=True)
class Case:
    """A cache of `places` rows, replayed so many times with so many lookups."""

    popularity: Popularity
    policy: Policy
    places: int
    batch: int
    lookups: int
    warm_up: int
    replays: int


def steps(generator: np.random.Generator, rows: int) -> Popularity:
    """Two to four kinds of rows, each looked up alike."""
    kinds = int(generator.integers(2, 5))
    parts = np.maximum(np.round(generator.dirichlet(np.ones(kinds)) * rows), 1.0)
    return Popularity(parts, generator.dirichlet(np.ones(kinds)))


def any_case(name: str, generator: np.random.Generator) -> Case:
    """200 to 20,000 rows, one row to all but one of them cached."""
    kind = generator.integers(4)
    rows = int(np.exp(generator.uniform(np.log(200), np.log(20_000))))
    if kind < 3:
        alpha = float(generator.uniform(0.3, 1.5))
        shift = float(generator.choice([0, 0, generator.uniform(0, 20)]))
        popularity = zipf(rows, alpha, min(shift, rows - 1))
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
    ways = int(generator.choice([2, 4, 8, 16, 32]))
    lookups = 1 << 19
    replays = 4 if name == "set_associative" and places < 500 else 1
    return Case(popularity, _policy(name, ways), places, batch, lookups, lookups // 4, replays)


def small_case(name: str, generator: np.random.Generator) -> Case:
    """3 to 400 rows, one to eight of them cached."""
    rows = int(np.exp(generator.uniform(np.log(3), np.log(400))))
    if generator.random() < 0.75:
        popularity = zipf(rows, float(generator.uniform(0.3, 2.0)))
    else:
        popularity = steps(generator, rows)
    places = int(generator.integers(1, min(9, round(popularity.total_rows))))
    batch = int(generator.integers(1, 64))
    ways = int(generator.choice([1, 2, 4]))
    sets = name == "set_associative"
    places = max(ways, places - places % ways) if sets else places
    lookups = 1 << 14 if sets else 1 << 18
    policy = _policy(name, ways)
    return Case(popularity, policy, places, batch, lookups, lookups // 4, 64 if sets else 1)


def errors(case: Case, seed: int) -> tuple[float, float]:
    """Of all lookups, and of each batch's distinct rows."""
    found = []
    for number in range(case.replays):
        filled = last_lookups(case.popularity, seed=7 * seed + number)
        drawn = draw_lookups(
            case.popularity, case.warm_up + case.lookups, seed=1_000 * seed + number
        )
        rows = np.concatenate([filled, drawn])
        if isinstance(case.policy, SetAssociativeLru):
            rows = np.random.default_rng(99 * seed + number).permutation(1 << 16)[rows]
        warm_up = len(rows) - case.lookups
        made = replay(rows, case.places, case.policy, batch_lookups=case.batch, warm_up=warm_up)
        found.append((made.hit_frac, made.distinct_hit_frac))
    hit_frac, distinct_hit_frac = np.mean(found, axis=0)
    table = TableAccess(popularity=case.popularity, lookups=case.batch, row_bytes=1.0)
    told = steady_use([table], Cache(case.places, case.policy))
    return told.hit_frac[0] - hit_frac, told.distinct_hit_frac[0] - distinct_hit_frac


def main() -> None:
    name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    draw = small_case if "small" in sys.argv[4:] else any_case
    cases = [draw(name, np.random.default_rng(seed)) for seed in range(first, first + count)]
    found = np.array([errors(case, first + number) for number, case in enumerate(cases)])
    for part, values in zip(("lookups", "distinct rows"), np.abs(found).T, strict=True):
        middle, high = np.median(values), np.quantile(values, 0.9)
        print(f"{name} {part}: median {middle:.4f} 90 % {high:.4f} worst {values.max():.4f}")
    for place in np.argsort(-np.abs(found).max(axis=1))[:6]:
        case = cases[place]
        print(f"{found[place]} {case.places} places, {case.batch} lookups, {case.popularity}")


def _policy(name: str, ways: int) -> Policy:
    return SetAssociativeLru(ways) if name == "set_associative" else POLICIES[name]()


if __name__ == "__main__":
    main()
