"""What an embedding op's attributes say of the tables that it looks up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.errors import GraphError

_WHOLE = ("hash_size", "dim", "batch")
_REAL = ("pooling", "unique_rows", "alpha")


@dataclass(frozen=True)
class Lookups:
    """The lookups of one op, one entry per table, in words of the measurement table.

    `pooling` is the mean number of rows per bag, `unique_rows` the expected number of distinct rows
    that all bags together touch, `alpha` the exponent of a Zipf distribution (0: uniform).
    """

    hash_size: tuple[int, ...]
    dim: tuple[int, ...]
    batch: tuple[int, ...]
    pooling: tuple[float, ...]
    unique_rows: tuple[float, ...]
    alpha: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.hash_size)

    def to_attributes(self) -> dict[str, str]:
        """As attributes of an op: numbers with commas between them."""
        return {
            **{name: ",".join(map(str, getattr(self, name))) for name in _WHOLE},
            **{name: ",".join(f"{value:.9g}" for value in getattr(self, name)) for name in _REAL},
        }


def lookups_of(attributes: Mapping[str, str]) -> Lookups | None:
    """What `attributes` say, or None where they say nothing of lookups.

    Raises `GraphError` where they cannot be read, or name different numbers of tables.
    """
    if "hash_size" not in attributes:
        return None
    try:
        whole = [tuple(map(int, attributes[name].split(","))) for name in _WHOLE]
        real = [tuple(map(float, attributes[name].split(","))) for name in _REAL]
    except (KeyError, ValueError) as error:
        raise GraphError(f"attributes of an embedding op: {error}") from None
    columns: list[Sequence[float]] = [*whole, *real]
    if len({len(column) for column in columns}) > 1:
        raise GraphError("attributes of an embedding op: columns of different length")
    return Lookups(*whole, *real)
