"""Queries served from drives: reads, latency under a rate, warm-up; hosts and power of a fleet."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import UsageError
from perfmodel.hardware.parts import Storage
from perfmodel.tiers.drives import alone_us, reads_per_s
from perfmodel.timeline.offered import LoadLatency, Service, latency_under
from perfmodel.units import US_PER_S


@dataclass(frozen=True)
class UserSide:
    """What one query reads of tables on `drives` drives, at most `in_flight` reads at a time.

    Of `lookups` rows of `row_bytes`, a row cache answers `hit_frac`; `pooled_frac` of the queries'
    bags are found pooled.
    """

    drive: Storage
    drives: int
    lookups: float
    row_bytes: float
    hit_frac: float = 0.0
    pooled_frac: float = 0.0
    in_flight: int = 256

    def __post_init__(self) -> None:
        for frac in (self.hit_frac, self.pooled_frac):
            if not 0 <= frac <= 1:
                raise UsageError(f"serving: a share of {frac:g}: expected 0 to 1")
        if not (self.lookups > 0 and self.row_bytes > 0 and self.drives > 0 and self.in_flight > 0):
            raise UsageError("serving: lookups, bytes, drives and reads in flight: all above 0")

    @property
    def reads(self) -> float:
        """Per query."""
        return self.lookups * (1 - self.hit_frac) * (1 - self.pooled_frac)

    @property
    def read_us(self) -> float:
        """Between reads that the drives complete, when they have as many as the host keeps."""
        fastest_us = US_PER_S / (self.drives * float(reads_per_s(self.drive, self.row_bytes)))
        return max(fastest_us, alone_us(self.drive) / self.in_flight)

    @property
    def most_queries_per_s(self) -> float:
        """That the drives can serve."""
        return US_PER_S / (self.read_us * self.reads) if self.reads else float("inf")

    def latency(self, queries_per_s: float) -> LoadLatency:
        """Of one query's reads, all handed over at once, beside those of the others."""
        count = max(self.reads, 1.0)
        one = Service(self.read_us, alone_us(self.drive))
        return latency_under(one, queries_per_s, batches_per_query=count)

    def warm_up_s(self, queries_per_s: float, cache_bytes: float) -> float:
        """Until a row cache that is empty after an update of the model is full again."""
        rows_per_s = queries_per_s * self.lookups * (1 - self.hit_frac)
        return cache_bytes / (rows_per_s * self.row_bytes)


def query_us(user: LoadLatency, item_us: float, top_us: float) -> float | None:
    """The 99th percentile of a query whose user side is read beside its items' lookups; None where
    the drives cannot keep up."""
    return None if user.p99_us is None else max(user.p99_us, item_us) + top_us


@dataclass(frozen=True)
class FleetHost:
    """One kind of host: what it draws, how many queries it serves and what it holds, of which
    `used_frac` can be used."""

    power_w: float
    queries_per_s: float
    capacity_bytes: float = float("inf")
    used_frac: float = 1.0

    def __post_init__(self) -> None:
        if not (self.power_w > 0 and self.queries_per_s > 0 and self.capacity_bytes > 0):
            raise UsageError("fleet: power, queries and capacity of a host: all above 0")
        if not 0 < self.used_frac <= 1:
            raise UsageError(f"fleet: {self.used_frac:g} of a host in use: expected 0 to 1")

    def hosts(self, queries_per_s: float, model_bytes: float = 0.0) -> float:
        """How many serve so many queries and together hold a model."""
        served = queries_per_s / (self.queries_per_s * self.used_frac)
        return max(served, model_bytes / self.capacity_bytes)

    def fleet_w(self, queries_per_s: float, model_bytes: float = 0.0) -> float:
        """Power of as many."""
        return self.hosts(queries_per_s, model_bytes) * self.power_w


def saving_frac(old_w: float, new_w: float) -> float:
    """Of the old power, what the new one saves."""
    return 1 - new_w / old_w
