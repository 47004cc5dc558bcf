"""Which rank holds which recovered table, or which part of one; tables of ranks of which there is
no record."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from perfmodel.workload.recovered_tables import SeenTable
from perfmodel.workload.tables import Table

EACH, SUMS, UNSEEN = "each", "sums", "unseen"
"""What tells rows and lookups of a table: its own figures; sums over the tables of one call; sums
over those of a rank without a record, with the mean rows of the others."""


@dataclass(frozen=True)
class HeldTable:
    """A table, as `seen` on the first of the `ranks` that hold it: each an equal part of its rows,
    or all of them where it is `replicated`. `skew_told`: its alpha is no default."""

    table: Table
    ranks: tuple[int, ...]
    seen: SeenTable
    told: str = EACH
    skew_told: bool = False
    replicated: bool = False

    @property
    def known(self) -> tuple[float | None, bool]:
        """Its exponent, None where it has none or a default; whether its own rows are told."""
        has_alpha = self.skew_told and not self.table.histogram
        return self.table.alpha if has_alpha else None, self.told == EACH


@dataclass(frozen=True)
class RecordedRanks:
    """What is recorded of `ranks` ranks with `batch` samples each: tables `seen` per rank, the
    `width` of all tables' rows side by side (None where nothing takes them so), and, of every rank,
    its part of that and the rows that a rank's samples look up there (`widths`, `lookups`: empty
    where no exchange tells)."""

    ranks: int
    batch: int
    seen: Mapping[int, Sequence[SeenTable]]
    width: int | None
    widths: Sequence[float] = ()
    lookups: Sequence[float] = ()


def held_tables(about: RecordedRanks) -> tuple[list[HeldTable], str]:
    """All tables, one from each rank in turn as software deals them out, at the end those that
    every rank holds; and the workload's word for how they are sharded."""
    every, alone = tuple(range(about.ranks)), about.batch if about.ranks > 1 else 0
    own = {r: [each for each in seen if each.bags != alone] for r, seen in about.seen.items()}
    first = next(iter(about.seen.values()))
    copies = [_held([each], every, replicated=True) for each in first if each.bags == alone]
    seen_width = sum(each.dim for seen in own.values() for each in seen)
    taken = sum(each.table.dim for each in copies)
    others = sum(about.widths) or seen_width * about.ranks / len(own)
    told = about.width or max(seen_width, round(others)) + taken
    width = told - taken
    if seen_width > width:
        held = _joined(own, seen_width - width)
        is_even = all(len(each.ranks) == len(own) for each in held)
        return held + copies, "row_wise" if is_even else "balanced"
    turns = {rank: [_held([each], (rank,)) for each in seen] for rank, seen in own.items()}
    turns |= _unseen(about, own, width - seen_width)
    dealt = zip_longest(*(turns.get(rank, ()) for rank in every))
    return [each for turn in dealt for each in turn if each] + copies, "table_wise"


def _held(
    parts: Sequence[SeenTable], ranks: tuple[int, ...], *, replicated: bool = False
) -> HeldTable:
    """The table of which these are row-wise parts."""
    first, rows = parts[0], sum(each.rows for each in parts)
    pooling = sum(each.lookups for each in parts) / first.bags
    table = Table(rows, first.dim, pooling, first.alpha or 0.0, pooled=first.is_pooled)
    table = _without_padding(table, parts)
    told = SUMS if first.is_mean else EACH
    return HeldTable(table, ranks, first, told, first.alpha is not None, replicated)


def _without_padding(table: Table, parts: Sequence[SeenTable]) -> Table:
    """`table`, with fewer rows by up to one of each part but one where so many touch as few."""
    touched, bags = sum(each.unique_rows for each in parts), parts[0].bags
    if len(parts) == 1 or not touched or table.unique_rows(bags) - touched < HALF_A_ROW:
        return table
    fewer = [replace(table, rows=table.rows - n) for n in range(len(parts) - 1, 0, -1)]
    at = bisect_left(fewer, touched - HALF_A_ROW, key=lambda each: each.unique_rows(bags))
    return (*fewer, table)[at]


HALF_A_ROW = 0.5
"""Expected numbers of distinct rows that differ by less are equal."""
LEAST_OF_ALIKE = 0.5
"""assumed: of parts of a table, to which rows fall by chance, each has so much of the lookups of
another at least."""


def _joined(own: Mapping[int, Sequence[SeenTable]], surplus: int) -> list[HeldTable]:
    """Parts of one size on several ranks joined, those with most lookups first, until the rows of
    all tables are no wider than what the interaction takes."""
    every = [(rank, part) for rank, seen in own.items() for part in seen]
    tables: list[dict[int, SeenTable]] = []
    for rank, part in sorted(every, key=lambda pair: -pair[1].lookups * pair[1].dim):
        alike = (each for each in reversed(tables) if rank not in each and _is_alike(each, part))
        other = next(alike, None) if surplus >= part.dim else None
        if other is None:
            tables.append({rank: part})
        else:
            other[rank] = part
            surplus -= part.dim
    return [_held(list(each.values()), tuple(sorted(each))) for each in tables]


def _is_alike(parts: Mapping[int, SeenTable], other: SeenTable) -> bool:
    first = next(iter(parts.values()))
    is_near = other.lookups >= LEAST_OF_ALIKE * first.lookups
    return (first.rows, first.dim) == (other.rows, other.dim) and is_near


def _unseen(
    about: RecordedRanks, own: Mapping[int, Sequence[SeenTable]], width: int
) -> dict[int, list[HeldTable]]:
    """Tables of ranks without a record: as wide and looked up as often as the exchange says, else
    as a mean table of the others; rows as many as that."""
    known = [each for seen in own.values() for each in seen]
    ranks = [rank for rank in range(about.ranks) if rank not in own]
    if not known or not ranks or width <= 0:
        return {}
    dim = Counter(each.dim for each in known).most_common(1)[0][0]
    rows = max(round(sum(each.rows for each in known) / len(known)), 1)
    mean = sum(each.lookups / each.bags for each in known) / len(known)
    found = {}
    for rank in ranks:
        count = max(round((about.widths[rank] if about.widths else width / len(ranks)) / dim), 1)
        table = Table(rows, dim, about.lookups[rank] / count if about.lookups else mean)
        found[rank] = [HeldTable(table, (rank,), known[0], UNSEEN)] * count
    return found
