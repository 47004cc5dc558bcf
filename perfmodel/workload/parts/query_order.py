"""A batch's queries in another order: what a drawn sample of them shows, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.locality import draw_lookups
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.reorder import MOST_QUERIES, Queries
from perfmodel.tiers.nic.order import AS_THEY_COME, in_order, measured_reuse
from perfmodel.workload.tables import Table

SAMPLED_LOOKUPS, MOST_SAMPLED = 60_000, 1024
"""Of a drawn sample: lookups, and queries at most."""


@dataclass(frozen=True)
class OrderOf:
    """Lookups per distinct row over independent ones, by window (`NicLoad.reuse`), and the pairs of
    lookups that finding the order of one batch compares."""

    reuse: tuple[tuple[float, float], ...]
    pairs: float


@lru_cache(maxsize=256)
def order_of(tables: tuple[Table, ...], batch: int, order: str) -> OrderOf:
    """`batch` queries of `tables` in `order`: measured on as many of them as can be drawn quickly.

    Lookups are independent but where tables' bags come by key; then rows come together.
    """
    keyed = any(table.key_rows for table in tables)
    if order == AS_THEY_COME and not keyed:
        return OrderOf((), 0.0)
    each = sum(table.pooling for table in tables)
    queries = int(np.clip(SAMPLED_LOOKUPS / each, 2, min(batch, MOST_SAMPLED)))
    drawn = drawn_queries(tables, queries)
    found = in_order([drawn], order)
    reuse = measured_reuse(found.batches, joined(tables))
    pairs = 0.0 if order == AS_THEY_COME else sum(_pairs(table, batch) for table in tables)
    return OrderOf(reuse, pairs)


def drawn_queries(tables: tuple[Table, ...], queries: int, *, seed: int = 0) -> Queries:
    """So many queries of all `tables`, rows of different tables apart; whole bags of mean size."""
    rows, owners, first = [], [], 0
    for number, table in enumerate(tables):
        bag = max(round(table.pooling), 1)
        if table.key_rows:
            keys = draw_lookups(Table(table.key_rows, 1, 1, table.alpha).popularity(), queries)
            places = np.repeat(keys, bag) * bag + np.tile(np.arange(bag), queries)
            generator = np.random.default_rng([seed, number])
            drawn = places * int(generator.integers(1, 1 << 30) * 2 + 1) % table.rows
        else:
            drawn = draw_lookups(table.popularity(), queries * bag, seed=seed + number)
        rows.append(drawn + first)
        owners.append(np.repeat(np.arange(queries), bag))
        first += table.rows
    order = np.argsort(np.concatenate(owners), kind="stable")
    lengths = np.bincount(np.concatenate(owners), minlength=queries)
    return Queries(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(rows)[order])


def joined(tables: tuple[Table, ...]) -> Popularity:
    """All tables as one, each looked up as often as it is."""
    total = sum(table.pooling for table in tables)
    found = [table.popularity() for table in tables]
    return Popularity(
        np.concatenate([each.rows for each in found]),
        np.concatenate(
            [
                each.share * (table.pooling / total)
                for each, table in zip(found, tables, strict=True)
            ]
        ),
    )


def _pairs(table: Table, batch: int) -> float:
    """Expected squares of how often each row is looked up, of rows that 2 to so many queries do."""
    popularity = table.popularity()
    mean = popularity.chance * table.lookups(batch)
    times = np.arange(1.0, MOST_QUERIES + 1)
    log_factorial = np.cumsum(np.log(times))
    log_chance = np.outer(times, np.log(np.maximum(mean, 1e-300))) - mean - log_factorial[:, None]
    squares = np.where(times > 1, times**2, 0.0) @ np.exp(log_chance)
    return float(np.dot(squares, popularity.rows))
