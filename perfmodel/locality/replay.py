"""What a cache finds when an index stream is replayed through it, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.policies import Bools, Policy
from perfmodel.locality.stack import Ints


@dataclass(frozen=True, eq=False)
class Replayed:
    """A replay: which lookups found their row `[lookups]`, and per batch `[batches]` the rest.

    `distinct_rows` of each batch, and `fetched_rows`, those of them that were not in the cache when
    the batch began.
    """

    found: Bools
    distinct_rows: Ints
    fetched_rows: Ints

    @property
    def hit_frac(self) -> float:
        """Share of the lookups that found their row."""
        return float(self.found.mean())

    @property
    def distinct_hit_frac(self) -> float:
        """Share of the batches' distinct rows that were not fetched."""
        return float(1.0 - self.fetched_rows.sum() / self.distinct_rows.sum())


def replay(
    rows: Ints, capacity_rows: int, policy: Policy, *, batch_lookups: int = 1, warm_up: int = 0
) -> Replayed:
    """Replay `rows` `[lookups]` through an empty cache of so many rows.

    What counts is what the cache holds when a batch of `batch_lookups` begins; it takes in the
    batch lookup by lookup. The first `warm_up` lookups are not counted; batches begin after them,
    and an incomplete last one is left out.
    """
    if capacity_rows < 0 or batch_lookups < 1 or not 0 <= warm_up < len(rows):
        raise WorkloadError(
            f"replay: {capacity_rows} rows, batches of {batch_lookups}, warm-up of {warm_up} of "
            f"{len(rows)} lookups"
        )
    batches = (len(rows) - warm_up) // batch_lookups
    if not batches:
        raise WorkloadError(f"replay: less than one batch of {batch_lookups} lookups")
    rows = rows[: warm_up + batches * batch_lookups]
    step = np.maximum(np.arange(len(rows)) - warm_up, -1) // batch_lookups + 1
    found = policy.hits(rows, capacity_rows, step)[warm_up:]
    counted, number = rows[warm_up:], step[warm_up:] - 1
    order = np.lexsort((counted, number))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(counted[order]) != 0) | (np.diff(number[order]) != 0)
    chosen = order[first]
    return Replayed(
        found=found,
        distinct_rows=np.bincount(number[chosen], minlength=batches),
        fetched_rows=np.bincount(number[chosen][~found[chosen]], minlength=batches),
    )
