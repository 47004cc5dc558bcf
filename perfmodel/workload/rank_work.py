"""What a step asks of each rank: classes of equal ranks, bytes exchanged, time to load data.

Source: Mudigere et al., Neo (ISCA 2022), and TorchRec's sharding types: which collective each
scheme takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.embedding import Placement, TablePlacement
from perfmodel.ops.storage import item_bytes, row_bytes
from perfmodel.units import BYTES_PER_GB, US_PER_S
from perfmodel.workload.model import Workload, counts
from perfmodel.workload.sharding import plan, plan_of_placement
from perfmodel.workload.tables import Table


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; per sample each reads `looked_up` elements
    and sends `pooled`. Per batch it needs about `missed_bytes` of rows from beside its device."""

    ranks: tuple[int, ...]
    looked_up: float
    pooled: int
    missed_bytes: float = 0.0


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
            0.0 if placement is None else _missed_bytes(key, placement, batch or workload.batch),
        )
        for key, own in by_work.items()
    ]


def deciding_classes(classes: list[RankClass]) -> list[RankClass]:
    """The class that looks up and sends most, and where others send or miss most, those too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    sender = max(classes, key=lambda each: (each.pooled, each is first))
    misser = max(classes, key=lambda each: (each.missed_bytes, each is first, each is sender))
    found = [first]
    for other in (sender, misser):
        if other not in found:
            found.append(other)
    return found


def _missed_bytes(
    held: tuple[tuple[Table, TablePlacement | None], ...], placement: Placement, batch: int
) -> float:
    """Distinct rows of a batch in tables beside device memory, less the part that their largest
    cache could hold of all their rows."""
    slow = [
        (table, way, float(row_bytes(way.dtype, table.dim)))
        for table, way in held
        if way is not None and way.tier != "hbm"
    ]
    if not slow:
        return 0.0
    total = sum(table.rows * size for table, _, size in slow)
    rooms = [placement.cache(name).capacity_bytes for _, way, _ in slow for name in way.caches]
    missing = max(1.0 - max(rooms, default=0.0) / total, 0.0)
    return missing * sum(table.unique_rows(batch) * size for table, _, size in slow)


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


Phase = Literal["input", "forward", "backward"]
LENGTH_BYTES = 4.0
"""Of the number of indices that a sample has in a table."""
ITEM_BYTES = 4.0


@dataclass(frozen=True)
class Volume:
    """One collective: bytes that each rank sends to others and receives from them, `[ranks]`."""

    phase: Phase
    collective: str
    sharding: str
    sent_bytes: Floats
    received_bytes: Floats


def volumes(
    workload: Workload,
    placement: Placement,
    ranks: int,
    batch: int,
    *,
    linked: int | None = None,
    forward_bytes: float = ITEM_BYTES,
    backward_bytes: float = ITEM_BYTES,
) -> list[Volume]:
    """What a step with a global `batch` exchanges of its tables; elements of pooled rows are
    `forward_bytes` on the wire, of their gradients `backward_bytes`.

    Raises `WorkloadError` as `placed` does.
    """
    near = min(linked or ranks, ranks)
    key_bytes = float(item_bytes([workload.implementation.key_dtype])[0])
    plan_of_placement(workload, placement, ranks, near)
    found: dict[tuple[Phase, str, str], tuple[Floats, Floats]] = {}
    for about, table in zip(placement.tables, workload.tables, strict=True):
        holders = np.array(about.ranks)
        if about.sharding == "data_parallel":
            whole = 2 * (ranks - 1) / ranks * table.rows * table.dim * ITEM_BYTES
            _add(found, ("backward", "all_reduce", about.sharding), np.full(ranks, whole))
            continue
        count = len(holders)
        by_row = about.sharding in ("row_wise", "table_row_wise")
        bags = batch / ranks
        indices = bags * table.pooling * key_bytes / (count if by_row else 1)
        to_holders = np.zeros((ranks, ranks))
        to_holders[:, holders] = indices + bags * LENGTH_BYTES
        _add_pairs(found, ("input", "all_to_all", about.sharding), to_holders)
        width = table.dim / (count if about.sharding == "column_wise" else 1)
        for key, pairs in _pooled(about.sharding, holders, bags * width, ranks, near):
            wire = forward_bytes if key[0] == "forward" else backward_bytes
            _add_pairs(found, key, pairs * wire)
    return [Volume(*key, sent, received) for key, (sent, received) in found.items()]


def _pooled(
    sharding: str, holders: NDArray[np.int64], elements: float, ranks: int, linked: int
) -> Iterator[tuple[tuple[Phase, str, str], Floats]]:
    """Elements of pooled rows (`elements` per rank's samples and shard) from rank to rank."""
    out = np.zeros((ranks, ranks))
    if sharding in ("table_wise", "column_wise"):
        out[holders, :] = elements
        yield ("forward", "all_to_all", sharding), out
        yield ("backward", "all_to_all", sharding), out.T
        return
    if sharding == "row_wise":
        out[holders, :] = elements
        yield ("forward", "reduce_scatter", sharding), out
        yield ("backward", "all_gather", sharding), out.T
        return
    groups = ranks // linked
    out[np.ix_(holders, holders)] = elements * ranks / len(holders)
    yield ("forward", "reduce_scatter", sharding), out
    yield ("backward", "all_gather", sharding), out.T
    across = np.zeros((ranks, ranks))
    for place, holder in enumerate(holders.tolist()):
        mine = [group * linked + place for group in range(groups)]
        across[holder, mine] = elements * ranks / len(holders) / groups
    yield ("forward", "all_to_all", sharding), across
    yield ("backward", "all_to_all", sharding), across.T


def _add_pairs(
    found: dict[tuple[Phase, str, str], tuple[Floats, Floats]],
    key: tuple[Phase, str, str],
    pairs: Floats,
) -> None:
    """`pairs` `[from, to]`; what a rank keeps is not sent."""
    others = pairs * (1 - np.eye(len(pairs)))
    _add(found, key, others.sum(axis=1), others.sum(axis=0))


def _add(
    found: dict[tuple[Phase, str, str], tuple[Floats, Floats]],
    key: tuple[Phase, str, str],
    sent: Floats,
    received: Floats | None = None,
) -> None:
    got = sent if received is None else received
    before = found.get(key, (np.zeros(len(sent)), np.zeros(len(sent))))
    found[key] = before[0] + sent, before[1] + got
