"""Durations over size as continuous, monotone curves: computed at sizes an octave apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from perfmodel.network.calls import Calls
from perfmodel.ops.rows import Ints
from perfmodel.ops.spec import Floats

FIRST, LAST = 3, 40
KNOTS = np.arange(FIRST, LAST + 1, dtype=np.float64)
"""log2 of bytes."""
Answer = Callable[[Calls], tuple[Floats, Floats]]
"""From calls to log(microseconds) and their standard deviation."""


def on_knots(calls: Calls, answer: Answer) -> tuple[Floats, Floats]:
    """What `answer` says of `calls`: straight between knots in both logarithms, never falling.

    Outside of the knots (8 bytes to 1 TB) the nearest one's value holds, plus the slope at the
    upper end.
    """
    first, kind = distinct(calls)
    kinds, knots = len(first), len(KNOTS)
    each = take(calls, np.repeat(first, knots))
    log_us, spread = answer(replace(each, size_bytes=np.tile(2.0**KNOTS, kinds)))
    log_us = np.maximum.accumulate(log_us.reshape(kinds, knots), axis=1)
    spread = spread.reshape(kinds, knots)
    size = np.log2(np.maximum(calls.size_bytes, 1.0))
    below = np.clip(np.floor(size) - FIRST, 0, knots - 2).astype(np.int64)
    part = np.maximum(size - KNOTS[below], 0.0)

    def between(values: Floats, along: Floats) -> Floats:
        low, high = values[kind, below], values[kind, below + 1]
        return np.asarray(low + (high - low) * along, np.float64)

    return between(log_us, part), between(spread, np.minimum(part, 1.0))


def distinct(calls: Calls) -> tuple[Ints, Ints]:
    """(a row of each kind of call, the kind of each row); kinds differ in all but size."""
    codes = [
        np.unique(getattr(calls, each.name), return_inverse=True)[1].reshape(-1)
        for each in fields(calls)
        if each.name != "size_bytes"
    ]
    _, first, kind = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    return first.astype(np.int64), kind.reshape(-1).astype(np.int64)


def take(calls: Calls, index: Ints) -> Calls:
    """The calls at `index`, in that order."""
    return Calls(**{each.name: getattr(calls, each.name)[index] for each in fields(calls)})
