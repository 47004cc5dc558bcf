"""What an embedding op's attributes say of the tables that it looks up.

In words of the measurement table for all tables together (`tables batch lookups dim hash_size pooling
zipf_alpha unique_rows`: sums of lookups and of distinct rows, means of the others), and per table as
lists with commas (`table_rows table_dims table_lookups table_alphas table_unique_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.errors import GraphError

_WHOLE = {"rows": "table_rows", "dims": "table_dims", "lookups": "table_lookups"}
_REAL = {"alphas": "table_alphas", "unique_rows": "table_unique_rows"}


@dataclass(frozen=True)
class Lookups:
    """The lookups of one op: `batch` bags in each table, and one entry per table of the others.

    `lookups` counts repeats, `unique_rows` is the expected number of distinct rows; `alphas` are
    the exponents of Zipf distributions (0: uniform).
    """

    batch: int
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    lookups: tuple[int, ...]
    alphas: tuple[float, ...]
    unique_rows: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def to_attributes(self) -> dict[str, str]:
        """As attributes of an op."""
        total, tables = sum(self.lookups), len(self)
        weighted = [alpha * n for alpha, n in zip(self.alphas, self.lookups, strict=True)]
        return {
            "tables": str(tables),
            "batch": str(self.batch),
            "lookups": str(total),
            "dim": _short(sum(self.dims) / tables),
            "hash_size": _short(sum(self.rows) / tables),
            "pooling": _short(total / tables / self.batch),
            "zipf_alpha": _short(sum(weighted) / total),
            "unique_rows": _short(sum(self.unique_rows)),
            **{key: ",".join(map(str, getattr(self, name))) for name, key in _WHOLE.items()},
            **{key: ",".join(map(_short, getattr(self, name))) for name, key in _REAL.items()},
        }


def lookups_of(attributes: Mapping[str, str]) -> Lookups | None:
    """What `attributes` say per table, or None where they say nothing of tables.

    Raises `GraphError` where they cannot be read, or name different numbers of tables.
    """
    if "table_rows" not in attributes:
        return None
    try:
        batch = int(attributes["batch"])
        whole = [tuple(map(int, attributes[key].split(","))) for key in _WHOLE.values()]
        real = [tuple(map(float, attributes[key].split(","))) for key in _REAL.values()]
    except (KeyError, ValueError) as error:
        raise GraphError(f"attributes of an embedding op: {error}") from None
    columns: list[Sequence[float]] = [*whole, *real]
    if len({len(column) for column in columns}) > 1:
        raise GraphError("attributes of an embedding op: lists of different length")
    return Lookups(batch, whole[0], whole[1], whole[2], real[0], real[1])


def _short(value: float) -> str:
    return f"{value:.9g}"
