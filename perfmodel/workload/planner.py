"""HugeCTR's planner: tables, or parts of them, to equal buckets so that the busiest has least work.

Work of a bucket: rows looked up per sample, and `table_cost` more for each table, whose pooled rows
are exchanged. Tables are parted in two again and again, the one with the largest part first, and
the best layout of all these is taken.

Source: the planner of NVIDIA's MLPerf DLRM-DCNv2 submissions (samples/dlrm/sharding of
NVIDIA-Merlin/HugeCTR), in own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.workload.tables import Table

ROUNDS = 20
"""How often the largest part is parted, at most."""
CAPACITY_BYTES = 60e9
"""Of one GPU, for tables with their optimizer state: the planner's default."""
Layout = list[list[int]]
"""Per bucket the numbers of the tables of which it has a part."""


def planned(
    tables: Mapping[int, Table],
    buckets: int,
    *,
    table_cost: float,
    row_bytes: float,
    capacity_bytes: float,
) -> tuple[Layout, dict[int, int]]:
    """Per bucket the tables that it has a part of, and per table how many parts there are.

    `row_bytes` is what a row takes with its optimizer state. Where no layout fits, every bucket
    has a part of every table.
    """
    parts = dict.fromkeys(tables, 1)
    best: tuple[float, Layout, dict[int, int]] | None = None
    for _ in range(ROUNDS):
        held, stuck = _placed(tables, parts, buckets, table_cost, capacity_bytes / row_bytes)
        if stuck is None:
            busiest = max(_work(tables, parts, own, table_cost) for own in held)
            if best is None or busiest < best[0]:
                best = busiest, held, dict(parts)
        candidates = [stuck] if stuck is not None else _by_part(tables, parts)
        split = next((number for number in candidates if 2 * parts[number] <= buckets), None)
        if split is None:
            break
        parts[split] *= 2
    if best is None:
        return [list(tables) for _ in range(buckets)], dict.fromkeys(tables, buckets)
    return best[1], best[2]


def _by_part(tables: Mapping[int, Table], parts: Mapping[int, int]) -> list[int]:
    """Tables, the one with the largest part first."""
    return sorted(tables, key=lambda number: -tables[number].pooling / parts[number])


def _placed(
    tables: Mapping[int, Table],
    parts: Mapping[int, int],
    buckets: int,
    table_cost: float,
    capacity_rows: float,
) -> tuple[Layout, int | None]:
    """The largest part first, each to the bucket with the least work that can take it.

    With the number of the first table that no bucket can take.
    """
    held: Layout = [[] for _ in range(buckets)]
    work, rows = [0.0] * buckets, [0.0] * buckets
    for number in _by_part(tables, parts):
        share = 1 / parts[number]
        for _ in range(parts[number]):
            fits = [
                bucket
                for bucket in range(buckets)
                if number not in held[bucket]
                and rows[bucket] + tables[number].rows * share <= capacity_rows
            ]
            if not fits:
                return held, number
            taken = min(fits, key=work.__getitem__)
            held[taken].append(number)
            work[taken] += tables[number].pooling * share + table_cost
            rows[taken] += tables[number].rows * share
    return held, None


def _work(
    tables: Mapping[int, Table], parts: Mapping[int, int], own: Sequence[int], table_cost: float
) -> float:
    return sum(tables[number].pooling / parts[number] + table_cost for number in own)
