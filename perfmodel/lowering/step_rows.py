"""The pieces of a whole step as rows: each knows how much the step writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.lowering.piece import Piece
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats

STEP_BYTES = "step_bytes"


def rows_of(pieces: Sequence[Piece]) -> Rows:
    """The pieces of a step as rows that know how much the whole step writes (`step_bytes`)."""
    rows = Rows.of(
        [
            {**piece.dims, "op": piece.op, "dtype": piece.dtype, "direction": piece.direction}
            for piece in pieces
        ]
    )
    total = written_bytes(rows).sum()
    return replace(rows, dims={**rows.dims, STEP_BYTES: np.full(len(rows), total)})


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
