"""Which rank holds which recovered table, or which part of one; tables of ranks of which there is
no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.workload.recovered_tables import SeenTable
from perfmodel.workload.tables import Table

EACH, SUMS, UNSEEN = "each", "sums", "unseen"
"""What tells rows and lookups of a table: its own figures; sums over the tables of one call; sums
over those of a rank without a record, and the mean rows of the others."""


@dataclass(frozen=True)
class HeldTable:
    """A table as it was recovered: in the memory of `device` of each of `ranks`, of which each has
    an equal part of its rows, or all of them where it is `replicated`."""

    table: Table
    ranks: tuple[int, ...]
    device: str
    dtype: str
    optimizer: str
    told: str = EACH
    has_skew: bool = False
    replicated: bool = False


@dataclass(frozen=True)
class Recorded:
    """What is recorded of `ranks` ranks with `batch` samples each: tables `seen` per rank, the
    `width` of all tables' rows side by side, and, of every rank, its part of that and the rows that
    a rank's samples look up there (`widths`, `lookups`: none where no exchange tells)."""

    ranks: int
    batch: int
    seen: Mapping[int, Sequence[SeenTable]]
    width: int
    widths: Sequence[float] = ()
    lookups: Sequence[float] = ()


def held_tables(about: Recorded) -> tuple[list[HeldTable], str]:
    """All tables, in turn from each rank, those that every rank holds at the end; and the word for
    how they are sharded."""
    replicated, own = [], dict[int, list[SeenTable]]()
    for rank, seen in about.seen.items():
        whole = [each for each in seen if about.ranks > 1 and _is_own(each, about.batch)]
        replicated = replicated or whole
        own[rank] = [each for each in seen if each not in whole]
    every = tuple(range(about.ranks))
    copies = [_held([each], every, replicated=True) for each in replicated]
    left = about.width - sum(each.dim for each in replicated)
    seen_width = sum(each.dim for seen in own.values() for each in seen)
    parts = next(iter(own.values()))
    if about.ranks > 1 and seen_width > left and sum(each.dim for each in parts) == left:
        rows = [_held(shards, tuple(own)) for shards in zip(*own.values(), strict=True)]
        return [*rows, *copies], "row_wise"
    if seen_width > left:
        return [*_in_parts(own, seen_width - left), *copies], "balanced"
    unseen = _unseen(about, own, left - seen_width)
    turns = [[_held([each], (rank,)) for each in own.get(rank, ())] for rank in every]
    for rank, tables in unseen.items():
        turns[rank] = tables
    return [*_in_turn(turns), *copies], "table_wise"


def _is_own(each: SeenTable, batch: int) -> bool:
    """Whether a rank looks up its own samples alone: it has all rows."""
    return each.bags == batch


def _held(
    parts: Sequence[SeenTable], ranks: tuple[int, ...], *, replicated: bool = False
) -> HeldTable:
    """The table of which these are row-wise parts."""
    first = parts[0]
    lookups = sum(each.lookups for each in parts)
    alpha = first.alpha or 0.0
    table = Table(sum(each.rows for each in parts), first.dim, lookups / first.bags, alpha)
    told = SUMS if first.is_mean else EACH
    known = first.alpha is not None
    about = (first.device, first.dtype, first.optimizer)
    return HeldTable(table, ranks, *about, told, known, replicated)


def _in_parts(own: Mapping[int, Sequence[SeenTable]], surplus: int) -> list[HeldTable]:
    """Equal parts on several ranks joined, those with most lookups first, until the rows of all
    tables are no wider than what the interaction takes."""
    alike: dict[tuple[float, ...], list[tuple[int, SeenTable]]] = {}
    for rank, seen in own.items():
        for each in seen:
            alike.setdefault((each.rows, each.dim, each.lookups), []).append((rank, each))
    held = []
    for (_, dim, _), shards in sorted(alike.items(), key=lambda item: -item[0][1] * item[0][2]):
        count = len(shards)
        if count > 1 and (count - 1) * dim <= surplus:
            surplus -= int((count - 1) * dim)
            held.append(_held([each for _, each in shards], tuple(rank for rank, _ in shards)))
        else:
            held += [_held([each], (rank,)) for rank, each in shards]
    return held


def _unseen(
    about: Recorded, own: Mapping[int, Sequence[SeenTable]], width: int
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
        part = about.widths[rank] if about.widths else width / len(ranks)
        count = max(round(part / dim), 1)
        pooling = about.lookups[rank] / count if about.lookups else mean
        like = _held([known[0]], (rank,))
        table = Table(rows, dim, pooling)
        found[rank] = [replace(like, table=table, told=UNSEEN, has_skew=False)] * count
    return found


def _in_turn(turns: Sequence[Sequence[HeldTable]]) -> Iterator[HeldTable]:
    """The first table of each rank, then the second, as software deals tables out."""
    for number in range(max(map(len, turns), default=0)):
        yield from (own[number] for own in turns if number < len(own))
