"""The most popular rows stay, once and for all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses, touched_each
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints


@POLICIES.register("static")
@dataclass(frozen=True)
class StaticHotSet(Policy):
    """The rows with most lookups per row, as many as fit; nothing else enters.

    Popularity is known beforehand (a statistic of the data set). No policy that does not know the
    future finds more under independent lookups into rows of one size. In a replay, hot are the rows
    that `profile`, another stream, looks up most; without it, those of the stream itself.
    """

    profile: Ints | None = field(default=None, compare=False)

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        order = np.argsort(-classes.rate, kind="stable")
        used = np.where(classes.rate > 0, classes.used_bytes, 0.0)[order]
        before = np.cumsum(used) - used
        room = np.clip(capacity_bytes - before, 0.0, used)
        kept = np.empty(len(order))
        kept[order] = np.divide(room, used, out=np.zeros_like(used), where=used > 0)
        return kept

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        """Hot rows miss once each, the others always."""
        kept = self.residency(classes, capacity_bytes)
        always = lookups * classes.rows * classes.rate
        return kept * touched_each(classes, lookups) + (1.0 - kept) * always

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        """Hot rows are there from the start."""
        seen, counts = np.unique(rows if self.profile is None else self.profile, return_counts=True)
        hot = seen[np.argsort(-counts, kind="stable")[:capacity_rows]]
        return np.isin(rows, hot)
