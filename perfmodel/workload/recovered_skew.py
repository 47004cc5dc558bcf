"""How popular the rows of recovered tables are, from the ids that were looked up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.embedding.index_streams import read_stream, stream_alpha
from perfmodel.embedding.popularity import population, reuse_histogram, zipf
from perfmodel.errors import WorkloadError
from perfmodel.workload.tables import Table

_FEW_OFF = 0.05
"""By so much may the distinct rows that a Zipf distribution expects be off, for it to stand; and
two exponents of one table."""


def tables_with_ids(
    tables: Sequence[Table], path: str | Path, known: Sequence[tuple[float | None, bool]]
) -> tuple[Table, ...]:
    """`tables` with the skew of the ids in the file at `path`, of which it holds a stream for each
    (see `read_stream`): by number where their names end in numbers, else in order.

    `known` are exponents that are recorded, None where none is, and whether rows are: if not, a
    table has as many as its ids need. Raises `WorkloadError` for streams of other tables, ids
    beyond the rows of a table, and where exponents contradict one another.
    """
    streams = read_stream(path)
    names = list(streams)
    numbers = [re.search(r"\d+$", name) for name in names]
    if all(numbers):
        names.sort(key=lambda name: int(re.search(r"\d+$", name)[0]))  # type: ignore[index]
    if len(names) != len(tables):
        raise WorkloadError(f"{path}: ids of {len(names)} tables, the workload has {len(tables)}")
    made = []
    for number, (name, table, told) in enumerate(zip(names, tables, known, strict=True)):
        where, ids, (before, has_rows) = f"{path}: table {name or number}", streams[name], told
        rows = table.rows if has_rows else max(table.rows, int(ids.max()) + 1)
        skewed = with_skew(replace(table, rows=rows), ids, where)
        if before is not None and abs(skewed.alpha - before) > _FEW_OFF * max(before, 1.0):
            raise WorkloadError(
                f"{where}: its ids have alpha {skewed.alpha:.2f}, those that were recorded "
                f"{before:.2f}"
            )
        made.append(skewed)
    return tuple(made)


def with_skew(table: Table, ids: Ints, where: str) -> Table:
    """`table`, its rows as popular as `ids` `[lookups]` look them up: by Zipf's law where that
    expects as many distinct rows, else by a histogram."""
    largest = int(ids.max())
    if largest >= table.rows:
        raise WorkloadError(f"{where}: row {largest}, of {table.rows:,} rows from 0")
    alpha, histogram = stream_alpha(ids, table.rows), reuse_histogram(ids, where)
    expected = float(zipf(table.rows, alpha, smooth=True).distinct_rows(len(ids)))
    plain = replace(table, alpha=round(alpha, 4), key_rows=0, histogram=())
    if abs(expected - histogram.distinct_rows) <= _FEW_OFF * histogram.distinct_rows:
        return plain
    found = population(histogram, table.rows)
    rows = np.append(found.rows, max(table.rows - found.total_rows, 0.0)) / table.rows
    shares = np.maximum(np.append(found.share, 0.0), _UNSEEN_SHARE)
    classes = zip(shares.tolist(), rows.tolist(), strict=True)
    return replace(plain, alpha=0.0, histogram=tuple(each for each in classes if each[1] > 0))


_UNSEEN_SHARE = 1e-15
"""Of lookups that go to rows of which a stream has none."""
