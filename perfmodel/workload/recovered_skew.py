"""How popular the rows of recovered tables are, from the ids that were looked up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfmodel.base.arrays import Ints
from perfmodel.embedding.index_streams import read_stream, stream_alpha
from perfmodel.embedding.popularity import population, reuse_histogram, zipf
from perfmodel.errors import WorkloadError
from perfmodel.workload.tables import Table

_FEW_OFF = 0.05
"""By so much may the distinct rows that a Zipf distribution expects be off, for it to stand; and
two exponents of one table."""
_UNIFORM = 0.02
"""Below this exponent accesses are uniform."""


def tables_with_ids(
    tables: Sequence[Table], path: str | Path, known: Sequence[float | None]
) -> tuple[Table, ...]:
    """`tables` with the skew of the ids in the file at `path`, of which it holds a stream for each
    (see `read_stream`): by number where their names end in numbers, else in order.

    `known` are exponents that are recorded, None where none is. Raises `WorkloadError` for streams
    of other tables, ids beyond the rows of a table, and where both contradict one another.
    """
    streams = read_stream(path)
    names = list(streams)
    numbers = [re.search(r"\d+$", name) for name in names]
    if all(numbers):
        names.sort(key=lambda name: int(re.search(r"\d+$", name)[0]))  # type: ignore[index]
    if len(names) != len(tables):
        raise WorkloadError(f"{path}: ids of {len(names)} tables, the workload has {len(tables)}")
    made = []
    for number, (name, table, before) in enumerate(zip(names, tables, known, strict=True)):
        where = f"{path}: table {name or number}"
        skewed = with_skew(table, streams[name], where)
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
    alpha = alpha if alpha > _UNIFORM else 0.0
    expected = float(zipf(table.rows, alpha, smooth=True).distinct_rows(len(ids)))
    plain = replace(table, alpha=round(alpha, 4), key_rows=0, histogram=())
    if abs(expected - histogram.distinct_rows) <= _FEW_OFF * histogram.distinct_rows:
        return plain
    found = population(histogram, table.rows)
    unused = max(table.rows - found.total_rows, 0.0)
    shares = [
        (float(s), float(n)) for s, n in zip(found.share, found.rows / table.rows, strict=True)
    ]
    classes = [each for each in shares if each[0] > 0]
    unused += sum(each[1] for each in shares if not each[0]) * table.rows
    spare = [(_UNSEEN_SHARE, unused / table.rows)] if unused >= 1 else []
    return replace(plain, alpha=0.0, histogram=tuple([*classes, *spare]))


_UNSEEN_SHARE = 1e-12
"""Of lookups that go to rows of which a stream has none."""
