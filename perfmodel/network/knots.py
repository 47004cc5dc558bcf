"""Durations over size, and over the rate of links, as continuous and monotone curves."""

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
RATES_GB_PER_S = np.sort(np.outer((150.0, 225.0), 2.0 ** np.arange(-6, 5)).ravel())
"""Of links: two an octave, among them those of NVLink 2 to 5."""
Answer = Callable[[Calls], tuple[Floats, Floats]]
"""From calls to log(microseconds) and their standard deviation."""


def on_knots(calls: Calls, answer: Answer) -> tuple[Floats, Floats]:
    """What `answer` says of `calls`: straight between knots in both logarithms, never falling.

    Outside of the knots (8 bytes to 1 TB) the nearest one's value holds, plus the slope at the
    upper end.
    """
    first, kind = distinct(calls)
    size = np.log2(np.maximum(calls.size_bytes, 1.0))
    below = np.clip(np.floor(size) - FIRST, 0, len(KNOTS) - 2).astype(np.int64)
    part = np.maximum(size - KNOTS[below], 0.0)
    kinds, knots = len(first), int(below.max(initial=0)) + 2
    each = take(calls, np.repeat(first, knots))
    log_us, spread = answer(replace(each, size_bytes=np.tile(2.0 ** KNOTS[:knots], kinds)))
    log_us = np.maximum.accumulate(log_us.reshape(kinds, knots), axis=1)
    spread = spread.reshape(kinds, knots)

    def between(values: Floats, along: Floats) -> Floats:
        low, high = values[kind, below], values[kind, below + 1]
        return np.asarray(low + (high - low) * along, np.float64)

    return between(log_us, part), between(spread, np.minimum(part, 1.0))


def on_rates(calls: Calls, answer: Answer) -> tuple[Floats, Floats]:
    """What `answer` says of `calls` at `RATES_GB_PER_S`: straight between them in both logarithms,
    never rising with the rate; below the first and above the last, what holds there.
    """
    rate = np.log(np.maximum(calls.link_gb_per_s, 1e-9))
    place = np.interp(rate, np.log(RATES_GB_PER_S), np.arange(len(RATES_GB_PER_S), dtype=float))
    below = np.minimum(place.astype(np.int64), len(RATES_GB_PER_S) - 2)
    part, row = place - below, np.arange(len(calls))
    count = int(below.max(initial=0)) + 2
    each = take(calls, np.repeat(row, count))
    each = replace(each, link_gb_per_s=np.tile(RATES_GB_PER_S[:count], len(calls)))
    log_us, spread = (values.reshape(-1, count) for values in answer(each))
    log_us = np.minimum.accumulate(log_us, axis=1)
    low, high = log_us[row, below], log_us[row, below + 1]
    return np.asarray(low + (high - low) * part, np.float64), spread[:, 0]


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
