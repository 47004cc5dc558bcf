"""The pieces of a whole step as rows that know the step.

`step_bytes` is what all of them write, `first_frac` is 1 for the first of its op and direction,
whose code and whose threads have been idle since the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.lowering.piece import Piece
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats

STEP_BYTES, FIRST_FRAC = "step_bytes", "first_frac"


def rows_of(pieces: Sequence[Piece]) -> Rows:
    """The pieces of one step, in order, as rows."""
    rows = Rows.of(
        [
            {**piece.dims, "op": piece.op, "dtype": piece.dtype, "direction": piece.direction}
            for piece in pieces
        ]
    )
    total = written_bytes(rows).sum()
    told = {STEP_BYTES: np.full(len(rows), total), FIRST_FRAC: is_first(rows)}
    return replace(rows, dims={**rows.dims, **told})


def is_first(rows: Rows) -> Floats:
    """1 for the first row of its op and direction, 0 for the others."""
    found = np.zeros(len(rows))
    seen: set[tuple[str, str]] = set()
    for row, key in enumerate(zip(rows.op, rows.direction, strict=True)):
        if key not in seen:
            seen.add(key)
            found[row] = 1.0
    return found


def written_bytes(rows: Rows) -> Floats:
    """Bytes that each row writes."""
    found = np.zeros(len(rows))
    for op, index in rows.groups():
        dims, item = rows.dims_of(op, index), rows.item_bytes(index)
        directions = np.array([rows.direction[row] for row in index.tolist()])
        for direction in set(directions.tolist()):
            written = OPS[op].of(direction).written_bytes(dims, item)
            chosen = directions == direction
            found[index[chosen]] = written[chosen]
    return found
