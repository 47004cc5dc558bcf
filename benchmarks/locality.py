"""Closed forms of cache hit rates against exact replays, over a fixed grid.

`python benchmarks/locality.py [POLICY]` prints the absolute error per policy: of the share of
lookups that find their row, and of the share of a batch's distinct rows that need not be fetched.
It takes ten minutes and more for all five.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.streams import last_lookups
from perfmodel.embedding import (
    Cache,
    Lru,
    Policy,
    SetAssociativeLru,
    StaticHotSet,
    TableAccess,
    draw_lookups,
    replay,
    steady_use,
    zipf,
)

ROWS = 10_000
ALPHAS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
CACHED = (0.001, 0.01, 0.1, 0.5)
BATCHES = (256, 4_096, 65_536)
LOOKUPS = 1 << 20
AT_LEAST_BATCHES = 24
PROFILE = 1 << 24


def policies(alpha: float) -> Iterator[Policy]:
    """One of each kind that has a closed form of its own."""
    yield Lru()
    yield SetAssociativeLru(ways=8)
    yield StaticHotSet(profile=draw_lookups(zipf(ROWS, alpha), PROFILE, seed=9))


def errors(alpha: float, batch: int) -> Iterator[tuple[str, float, float, float]]:
    """(policy, share of the rows cached, error of hits, error of distinct hits)."""
    popularity = zipf(ROWS, alpha)
    lookups = max(LOOKUPS, AT_LEAST_BATCHES * 2 * batch)
    drawn = draw_lookups(popularity, lookups, seed=1)
    warm = last_lookups(popularity, seed=2)
    table = TableAccess(popularity=popularity, lookups=batch, row_bytes=1.0)
    for policy in policies(alpha):
        if type(policy).__name__ not in (sys.argv[1:] or [type(policy).__name__]):
            continue
        stream = np.concatenate([warm, drawn])
        for cached in CACHED:
            capacity = round(cached * ROWS)
            made = replay(
                stream, capacity, policy, batch_lookups=batch, warm_up=len(stream) - lookups // 2
            )
            told = steady_use([table], Cache(capacity, policy))
            yield (
                type(policy).__name__,
                cached,
                float(told.hit_frac[0]) - made.hit_frac,
                float(told.distinct_hit_frac[0]) - made.distinct_hit_frac,
            )


def main() -> None:
    found: list[tuple[str, float, float, int, float, float]] = []
    for alpha in ALPHAS:
        for batch in BATCHES:
            found += [(p, alpha, c, batch, h, d) for p, c, h, d in errors(alpha, batch)]
        print(f"alpha {alpha} done", file=sys.stderr)
    for name in sorted({row[0] for row in found}):
        hits = np.abs([row[4] for row in found if row[0] == name])
        distinct = np.abs([row[5] for row in found if row[0] == name])
        print(
            f"{name:18} hits: median {np.median(hits):.4f} worst {hits.max():.4f}   "
            f"distinct: median {np.median(distinct):.4f} worst {distinct.max():.4f}"
        )
    for row in sorted(found, key=lambda row: -max(abs(row[4]), abs(row[5])))[:8]:
        print("worst", row[0], *(f"{value:.4g}" for value in row[1:]))


if __name__ == "__main__":
    main()
