"""What a frame is here: anything with columns, such as a pandas frame or a dict of arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError
from perfmodel.units import US_PER_MS, US_PER_S


class Frame(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...

    def __contains__(self, name: str, /) -> bool: ...


def floats(frame: Frame, name: str) -> NDArray[np.float64]:
    """The column `name` as numbers. Raises `UsageError` where there is none."""
    return np.asarray(_column(frame, name), dtype=np.float64)


def texts(frame: Frame, name: str) -> NDArray[np.object_]:
    """The column `name` as texts. Raises `UsageError` where there is none."""
    return np.asarray([str(value) for value in _column(frame, name)], dtype=object)


def _column(frame: Frame, name: str) -> Any:
    if name not in frame:
        raise UsageError(f"the frame has no column '{name}'")
    return frame[name]


def time_unit(span_us: float) -> tuple[float, str]:
    """(microseconds per unit, name) of the unit in which a span reads best on an axis."""
    if span_us >= 10 * US_PER_S:
        return US_PER_S, "s"
    if span_us >= 2 * US_PER_MS:
        return US_PER_MS, "ms"
    return 1.0, "us"
