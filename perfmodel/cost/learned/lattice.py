"""Monotone answers: times of products, and of norms and softmax in fp32, are kept near those of a
lattice of sizes that rise with every dim, so that more work takes no less.

Trees alone fall where a layer grows by a quarter in one of twelve answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.contract import OfDevice
from perfmodel.hardware import Device
from perfmodel.ops.rows import FIRST_TURNED, FRAMEWORK, SECOND_TURNED, Rows
from perfmodel.ops.spec import OPS

_FORWARD = "fwd"
_GIVEN = (FRAMEWORK, "warm", FIRST_TURNED, SECOND_TURNED, "strided")
"""Dims that are no size: each of their values has a lattice of its own."""
_NONE = -1.0
_BY_ROW = ("rows", "cols")
_DIMS = (_BY_ROW, ("m", "n", "k"), ("b", "m", "n", "k"))
_ALONG, _ALIGNED = ("n", "k", "cols"), 8.0
"""Dims along which elements follow one another, and the elements that rows of operands start at
multiples of, so that the same kernels run: points are aligned, and cap aligned sizes only."""
_BLOCK = {"fp8_block": 128.0}
"""Elements of a side that are scaled together: shorter sides are of one block."""
_MIN_LOG2, _MAX_LOG2, _MAX_BATCHED_LOG2, _MAX_ROWS_LOG2 = 5.0, 16.0, 14.0, 24.0
_REACH_FRAC = 0.25
"""Of the spacing: how far from a size its limits are."""
Times = Callable[[Rows, Device], Floats]


@dataclass(frozen=True)
class Lattice:
    """log2 of the sizes along each dim, evenly spaced; log of the microseconds at each point."""

    axes: tuple[Floats, ...]
    log_us: Floats

    @property
    def ends(self) -> Floats:
        """First and last size on each axis `[2, axes, 1]`."""
        return np.array([[[axis[at]] for axis in self.axes] for at in (0, -1)])

    def at(self, sizes: Floats) -> Floats:
        """Log microseconds at `sizes` `[axes, n]` (log2), by the nearest edge outside."""
        cells = np.array(self.log_us.shape)[:, None] - 1
        first, last = self.ends
        place = np.clip((sizes - first) / (last - first) * cells, 0.0, cells)
        low = np.minimum(place.astype(np.int64), cells - 1)
        strides = np.array(self.log_us.strides) // self.log_us.itemsize
        corners = strides @ np.indices([2] * len(strides)).reshape(len(strides), -1)
        log_us, cell = self.log_us.ravel(), strides @ low
        values = [log_us[corner:].take(cell, mode="clip") for corner in corners.tolist()]
        for share in (place - low)[::-1]:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [below + share * (above - below) for below, above in pairs]
        return np.asarray(values[0])

    def limits(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Log microseconds (least, most) at `sizes` `[axes, n]` (log2) on it; none where what
        limits them lies beyond an edge."""
        first, last = self.ends
        steps = np.diag(_REACH_FRAC * np.array([axis[1] - axis[0] for axis in self.axes]))
        reach, count = steps.sum(axis=0)[:, None], len(steps)
        ways = np.concatenate([-steps, steps]).T[:, :, None]
        moved = (sizes[:, None] + ways).reshape(count, -1)
        below, above = self.at(moved).reshape(2, count, -1)
        least = np.where(sizes - reach >= first, below, -np.inf).max(axis=0)
        is_within = (sizes + reach <= last).all(axis=0)
        return least, np.where(is_within, above.min(axis=0), np.inf)


def limits_us(times: Times, whose: Hashable, rows: Rows, device: Device) -> tuple[Floats, Floats]:
    """(least, most) microseconds of each row by the model `times`, which is told from others by
    `whose`; a batch of an op that usually has none has no limits."""
    least, most = np.zeros(len(rows)), np.full(len(rows), np.inf)
    names = [name for name in _GIVEN if name in rows.dims]
    given = np.array([_given(rows, name) for name in names]).reshape(len(names), len(rows))
    for (op, dtype, way, timing), index in rows.grouped(lambda kind: kind):
        dims, sides = rows.dims_of(op, index), OPS[op].dims
        if way != _FORWARD or sides not in _DIMS:
            continue
        sizes = np.log2([dims[name] for name in sides])
        axes = _axes(op, dtype)
        on_lattice = np.logical_and.reduce(
            [(axis[0] <= each) & (each <= axis[-1]) for axis, each in zip(axes, sizes, strict=True)]
        )
        if "b" in dims and "b" not in sides:
            on_lattice &= dims["b"] == 1.0
        along = [dims[name] for name in sides if name in _ALONG]
        is_aligned = (np.mod(along, _ALIGNED) == 0.0).all(axis=0)
        kinds, place = np.unique(given[:, index], axis=1, return_inverse=True)
        for at, values in enumerate(kinds.T.tolist()):
            own = np.flatnonzero(on_lattice & (place == at))
            if len(own):
                known = ((name, each) for name, each in zip(names, values, strict=True))
                what = op, dtype, timing, tuple(pair for pair in known if pair[1] != _NONE)
                found = _lattice(OfDevice((whose, *what), device, (times, *what)))
                low, high = np.exp(found.limits(sizes[:, own]))
                most[index[own]] = np.where(is_aligned[own], high, np.inf)
                least[index[own]] = np.minimum(low, most[index[own]])
    return least, most


def _given(rows: Rows, name: str) -> Floats:
    """The dim `name` per row; -1 where there is none, or no framework is known."""
    values = rows.dims[name]
    is_known = values > 0.0 if name == FRAMEWORK else values == values
    return np.where(is_known, values, _NONE)


@lru_cache(maxsize=1024)
def _lattice(asked: OfDevice) -> Lattice:
    times, op, dtype, timing, given = asked.by
    axes = _axes(op, dtype)
    sizes = [2.0 ** each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
    count = len(sizes[0])
    dims = {name: np.full(count, value) for name, value in given}
    dims |= dict(zip(OPS[op].dims, sizes, strict=True))
    rows = Rows((op,) * count, (dtype,) * count, (_FORWARD,) * count, (timing,) * count, dims)
    us = times(rows, asked.device)
    return Lattice(axes, monotone_midway(np.log(us).reshape([len(each) for each in axes])))


@lru_cache(maxsize=64)
def _axes(op: str, dtype: str) -> tuple[Floats, ...]:
    """log2 of the sizes along b (where there are batches), m, n and k; along rows and columns."""
    least, dims = max(_MIN_LOG2, np.log2(_BLOCK.get(dtype, 1.0))), OPS[op].dims
    if dims == _BY_ROW:
        return np.arange(0.0, _MAX_ROWS_LOG2), np.arange(least, _MAX_LOG2)
    is_batched = "b" in dims
    step = 2.0 if is_batched else 1.0
    sides = np.arange(least, _MAX_BATCHED_LOG2 if is_batched else _MAX_LOG2, step)
    return np.arange(0.0, _MAX_LOG2, step), *(sides,) * (len(dims) - 1)


def monotone_midway(values: Floats) -> Floats:
    """Midway between the least above `values` and the largest below that rise on each axis."""
    above, below = values, values
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray(0.5 * (above + below))
