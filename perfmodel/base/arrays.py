"""Types of the columns that everything is kept in, their different values and quantiles.

The functions are those of NumPy for plain arrays; NumPy's own load its masked arrays, which takes
as long as to link a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
S = TypeVar("S", bound=np.generic)
Keys = NDArray[np.complex128]
"""What is compared by its real part, then by its imaginary one."""


def distinct(values: NDArray[S]) -> NDArray[S]:
    """The different values, ascending."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def has_code(codes: NDArray[np.integer[Any]], chosen: Iterable[int]) -> Mask:
    """Which codes, of eight bits, are among the chosen."""
    table = np.zeros(256, np.bool_)
    table[list(chosen)] = True
    is_chosen = bytearray(codes.astype(np.int8)).translate(table.tobytes())
    return np.frombuffer(is_chosen, np.bool_)  # a tenth of the time that an index takes


def is_among(values: NDArray[S], others: NDArray[S]) -> Mask:
    """Which of the values are among the others."""
    known = distinct(others)
    if not len(known):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    result: Mask = known[at] == values
    return result


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """The different pairs, ascending by `first`, then by `second`."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[is_new], second[is_new]


def median(values: Floats) -> float:
    """The middle one of the values (at least one), or the mean of the two in the middle."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, [low, high])
    return float(ordered[low] + ordered[high]) / 2


def quantile(values: Floats, share: float) -> float:
    """What this share of the values lies below, between two of them in proportion."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    below, above = np.partition(values, [low, high])[[low, high]].tolist()
    part, step = place - low, above - below
    return float(below + step * part if part < 0.5 else above - step * (1 - part))
