"""What a step asks of each rank: classes of equal ranks, bytes exchanged, time to load data,
lengths of sequences.

Source: Mudigere et al., Neo (ISCA 2022), and TorchRec's sharding types: which collective each
scheme takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from operator import attrgetter
from statistics import NormalDist

import numpy as np

from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.ops.dtypes import row_bytes
from perfmodel.workload.model import Workload, counts
from perfmodel.workload.sharding import plan, plan_of_placement
from perfmodel.workload.tables import Table, mean_length


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; per sample each reads `looked_up` elements
    and sends `pooled`. Per batch it needs about `missed_rows` from beside its device, of
    `missed_bytes`: buses count bytes, drives rows. Its tables have `held_rows_bytes` in fp32."""

    ranks: tuple[int, ...]
    looked_up: float
    pooled: int
    missed_rows: float = 0.0
    missed_bytes: float = 0.0
    held_rows_bytes: int = 0


def rank_classes(
    workload: Workload,
    ranks: int,
    linked: int | None = None,
    placement: Placement | None = None,
    batch: int | None = None,
) -> list[RankClass]:
    """The classes of `ranks` under `placement`, else the plan of `workload`, by their first rank.

    `batch` is global, the workload's where it is not given.

    Raises `WorkloadError` as `plan` and `placed` do.
    """
    if placement is None:
        shares, ways = plan(workload, ranks, linked).shards, None
    else:
        shares = plan_of_placement(workload, placement, ranks, linked).shards
        ways = [replace(each, ranks=(0,), sharding="table_wise") for each in placement.tables]
    by_work: dict[tuple[tuple[Table, TablePlacement | None], ...], list[int]] = {}
    for rank, shards in enumerate(shares):
        key = tuple(
            (each.of(workload.tables), None if ways is None else ways[each.table])
            for each in shards
        )
        by_work.setdefault(key, []).append(rank)
    return [
        RankClass(
            tuple(own),
            sum(table.pooling * table.dim for table, _ in key),
            sum(table.dim for table, _ in key),
            *(
                (0.0, 0.0)
                if placement is None
                else _missed(key, placement, batch or workload.batch)
            ),
            sum(table.rows * table.dim for table, _ in key) * FLOAT_BYTES,
        )
        for key, own in by_work.items()
    ]


def deciding_classes(classes: list[RankClass]) -> list[RankClass]:
    """The class that looks up and sends most, and where others send or miss most, those too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    deciding = [first]
    for work in ("pooled", "missed_bytes", "missed_rows"):
        other = max([*deciding, *classes], key=attrgetter(work))
        if other not in deciding:
            deciding.append(other)
    return deciding


def _missed(
    held: tuple[tuple[Table, TablePlacement | None], ...], placement: Placement, batch: int
) -> tuple[float, float]:
    """(distinct rows of a batch in tables outside device memory that their largest cache has not;
    their bytes)."""
    slow = tuple(
        (table, float(row_bytes(way.dtype, table.dim)))
        for table, way in held
        if way is not None and way.tier != "hbm"
    )
    ways = [way for _, way in held if way is not None and way.tier != "hbm"]
    caches = [placement.cache(name) for way in ways for name in way.caches]
    largest = max(caches, key=attrgetter("capacity_bytes"), default=None)
    return _beyond(slow, batch, largest) if slow else (0.0, 0.0)


@lru_cache(maxsize=1 << 10)
def _beyond(
    held: tuple[tuple[Table, float], ...], batch: int, cache: RowCache | None
) -> tuple[float, float]:
    """Of rows that `batch` samples look up, each once, those that `cache` has not, of all tables
    together, and their bytes."""
    if cache is None or not cache.capacity_bytes:
        rows = [table.unique_rows(batch) for table, _ in held]
        return sum(rows), float(np.dot(rows, [size for _, size in held]))
    use = cache.steady_use([table.access(table.lookups(batch), size) for table, size in held])
    return float(use.fetched_rows.sum()), float(np.dot(use.fetched_rows, use.row_bytes))


FLOAT_BYTES, KEY_BYTES = 4, 8
"""Of dense features and labels, and of keys."""


def loading_us(workload: Workload, samples: float) -> float:
    """What one host's loader takes for `samples`, its part of a batch; 0 where nothing limits it.

    What it brings per sample is dense features, a label and a key per lookup, unless said.
    """
    loader = workload.loader
    of_batch = FLOAT_BYTES * (workload.model.dense_features + 1)
    size = loader.bytes_per_sample or of_batch + KEY_BYTES * counts(workload).lookups
    by_count = samples / loader.samples_per_s if loader.samples_per_s else 0.0
    by_size = samples * size / (loader.gb_per_s * BYTES_PER_GB) if loader.gb_per_s else 0.0
    return max(by_count, by_size) * US_PER_S


ALIGNED = 128
"""Positions are rounded up to so many: rows of operands are contiguous in the other dim, so that
their number, another in every step, does not decide which kernels multiply them."""
EVEN_STD = 1e-6
"""Lengths that spread by less of the longest are equal."""


@dataclass(frozen=True)
class Lengths:
    """Of one rank's batch: `tokens` in all its sequences, `pairs` of them that attend."""

    samples: int
    tokens: int
    pairs: float


def slowest_lengths(workload: Workload, batch: int, ranks: int) -> Lengths:
    """What the rank with the longest sequences has of `batch` samples, expected over batches.

    Lengths follow a beta distribution up to `max_length`. Their sums, and those of their squares,
    over `batch / samples_per_user` independent histories are nearly normal; the largest of `ranks`
    of them lies where Blom's formula has it. Where sequences are balanced, all have the mean: their
    sequences are exchanged one by one, which needs two of them on a rank.
    """
    about = workload.sequence
    mean, most = mean_length(workload.tables), float(about.max_length)
    squares, squares_std = _squares(mean / most, about.length_std / most)
    is_mean = about.balanced and batch > 1
    deviations = 0.0 if is_mean else NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    deviations = max(deviations, 0.0) / sqrt(max(batch / about.samples_per_user, 1.0))
    long = min(mean + deviations * about.length_std, most)
    square = most**2 * min(squares + deviations * squares_std, 1.0)
    tokens = -(-round(batch * long) // ALIGNED) * ALIGNED
    return Lengths(batch, tokens, batch * (square + long) / 2.0)


def _squares(mean: float, std: float) -> tuple[float, float]:
    """Mean and deviation of the square of a beta variable, from its own."""
    if std < EVEN_STD:
        return mean**2, 0.0
    concentration = mean * (1.0 - mean) / std**2 - 1.0
    moments = [1.0]
    for order in range(4):
        rest = (mean * concentration + order) / (concentration + order)
        moments.append(moments[-1] * rest)
    return moments[2], sqrt(max(moments[4] - moments[2] ** 2, 0.0))
