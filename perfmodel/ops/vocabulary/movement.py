"""Data moved within a device: copies, cat, gathers, scatters, transposes.

Gathers and scatters move `rows` rows of `cols` elements from or to a table of `hash_size` rows,
by int64 indices.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.streaming import elements, rows_cols, streaming

ROWS_COLS = ("rows", "cols")
INDEX_BYTES = 8.0
STRIDED = {"strided": 0.0}
"""1 where an operand does not lie in one stretch."""
TABLE = {"hash_size": 0.0}
"""0 where the size of the table is not known."""


def _indices(dims: Dims) -> Floats:
    return INDEX_BYTES * dims["rows"]


def _all_tensors(dims: Dims) -> Floats:
    return rows_cols(dims) * dims["tensors"]


def _copied(dims: Dims) -> Floats:
    """`elements` of a copy are the values that it moves: those it reads and those it writes."""
    return elements(dims) / 2.0


OPS.register("copy")(streaming(_copied, ("elements",), flop=0.0, defaults=STRIDED))
OPS.register("transpose_copy")(streaming(rows_cols, ROWS_COLS, flop=0.0))

# `tensors` of `rows x cols` each become, or come from, one of `rows x (cols * tensors)`; `largest`
# (0: as the mean) is the number of elements of the largest.
for _name in ("cat", "split"):
    OPS.register(_name)(
        streaming(
            _all_tensors,
            (*ROWS_COLS, "tensors"),
            flop=0.0,
            defaults={**STRIDED, "largest": 0.0},
        )
    )

for _name in ("index_select", "gather", "embedding"):
    OPS.register(_name)(
        streaming(
            rows_cols,
            ROWS_COLS,
            flop=0.0,
            read_index_bytes=_indices,
            defaults=TABLE,
            directions=("fwd", "bwd") if _name == "embedding" else ("fwd",),
        )
    )
# Adds into a table: the rows to add, and the rows they are added to, read and written. Where that
# is by atomics, `most_repeated` is how often the row comes that comes most often (0: as the mean).
_ADDED = {"index_add": {"most_repeated": 0.0}, "scatter_add": {"most_repeated": 0.0}}
for _name in (*_ADDED, "index_put_accumulate"):
    OPS.register(_name)(
        streaming(
            rows_cols,
            ROWS_COLS,
            reads=2.0,
            read_index_bytes=_indices,
            defaults={**TABLE, **_ADDED.get(_name, {})},
        )
    )
for _name in ("index_put", "scatter"):
    OPS.register(_name)(
        streaming(rows_cols, ROWS_COLS, flop=0.0, read_index_bytes=_indices, defaults=TABLE)
    )
