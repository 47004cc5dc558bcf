"""What an embedding op's attributes say of the tables that it looks up.

Of all its tables together in words of the measurement table (`tables lookups batch dim hash_size
pooling zipf_alpha unique_rows longest_bag`: sums of lookups and of distinct rows, the largest mean
bag, means of the others), and of each table in lists with commas (`table_hash_size table_dim
table_batch …`).
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "table_"
_WHOLE = ("hash_size", "dim", "batch")
_REAL = ("pooling", "unique_rows", "alpha")


@dataclass(frozen=True)
class Lookups:
    """The lookups of one op, one entry per table.

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

    @property
    def lookups(self) -> tuple[float, ...]:
        """Rows looked up in each table, repeats counted."""
        return tuple(bags * mean for bags, mean in zip(self.batch, self.pooling, strict=True))

    def to_attributes(self) -> dict[str, str]:
        """As attributes of an op."""
        total, tables, bags = sum(self.lookups), len(self), sum(self.batch)
        weighted = sum(a * n for a, n in zip(self.alpha, self.lookups, strict=True))
        together = {
            "lookups": total,
            "batch": bags / tables,
            "dim": sum(self.dim) / tables,
            "hash_size": sum(self.hash_size) / tables,
            "pooling": total / bags,
            "zipf_alpha": weighted / total,
            "unique_rows": sum(self.unique_rows),
            "longest_bag": max(self.pooling),
        }
        each = {
            PREFIX + name: ",".join(map(_short, getattr(self, name))) for name in (*_WHOLE, *_REAL)
        }
        return {
            "tables": str(tables),
            **{name: _short(value) for name, value in together.items()},
            **each,
        }


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
