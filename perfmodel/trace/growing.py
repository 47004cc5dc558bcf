"""Columns that grow while a file is decoded, in as few bytes as their values need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.trace.columns import Ints

_FIRST_ROWS = 1 << 12
_GROWTH = 1.5


class GrowingColumn:
    """One column, filled in order of its rows; rows that nothing is put into hold `missing`.

    An int32 column becomes int64 with the first value that needs it.
    """

    def __init__(self, dtype: Any, missing: float) -> None:
        self._values: NDArray[Any] = np.empty(0, dtype)
        self._missing = missing
        self._count = 0

    def put(self, rows: Ints | slice, values: NDArray[Any]) -> None:
        """Put `values` (one at least) into `rows`, which ascend and are behind all rows so far."""
        self._grow(rows.stop if isinstance(rows, slice) else int(rows[-1]) + 1)
        if self._values.dtype == np.int32 and not _is_narrow(values):
            self._values = self._values.astype(np.int64)
        self._values[rows] = values

    def taken(self, order: Ints) -> NDArray[Any]:
        """The column's rows in this order; call it once, as the column is empty then."""
        self._grow(len(order))
        values, self._values = self._values, self._values[:0]
        return values[order]

    def _grow(self, count: int) -> None:
        if count > len(self._values):
            rows = max(count, int(_GROWTH * len(self._values)), _FIRST_ROWS)
            values = np.empty(rows, self._values.dtype)
            values[: self._count] = self._values[: self._count]
            self._values = values
        self._values[self._count : count] = self._missing
        self._count = max(self._count, count)


def _is_narrow(values: NDArray[Any]) -> bool:
    """Whether integers fit into 32 bits."""
    return bool((values.astype(np.int32) == values).all())
