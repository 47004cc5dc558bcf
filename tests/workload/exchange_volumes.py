"""Which bytes each rank's tables make it send, by the definition of each sharding: the oracle of
the tests of pooled rows' collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.embedding import Placement
from perfmodel.ops.spec import item_bytes
from perfmodel.workload import Workload
from perfmodel.workload.sharding import plan_of_placement

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
    key_bytes = item_bytes(workload.implementation.key_dtype)
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
