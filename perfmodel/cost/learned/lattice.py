"""Monotone answers: times of products, and of norms and softmax in fp32, are kept near those of a
lattice of sizes that rise with every dim, so that more work takes no less.

Trees alone fall where a layer grows by a quarter in one of twelve answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats, Ints, clipped, distinct
from perfmodel.cost.basis import OfDevice
from perfmodel.cost.learned.devices import describe
from perfmodel.cost.learned.features import BY_ROW
from perfmodel.cost.learned.part import Part
from perfmodel.hardware import Device
from perfmodel.ops.rows import FIRST_TURNED, FRAMEWORK, SECOND_TURNED, Rows
from perfmodel.ops.spec import OPS

_BUILD, _ROWS_PART = "matmul", "vector_rows"
"""Of norms and softmax, those in fp32. In 16 bits two boards tell of few lengths of rows, and the
lattice between them is a guess: layer norms of an H100, half given, 1.4 % off, 7.2 with it."""
_FORWARD = "fwd"
_GIVEN = (FRAMEWORK, "warm", FIRST_TURNED, SECOND_TURNED, "strided")
"""Dims that are no size: each of their values has a lattice of its own."""
_NONE = -1.0
_ALONG, _ALIGNED = ("n", "k", "cols"), 8.0
"""Dims along which elements follow one another, and the elements that rows of operands start at
multiples of, so that the same kernels run: points are aligned, and cap aligned sizes only."""
_BLOCK = {"fp8_block": 128.0}
"""Elements of a side that are scaled together: shorter sides are of one block."""
_MIN_LOG2, _MAX_LOG2, _MAX_BATCHED_LOG2, _MAX_ROWS_LOG2 = 5.0, 16.0, 14.0, 24.0
_STEP_LOG2, _BATCHED_STEP_LOG2 = 1.0, 2.0
_REACH_FRAC = 0.25
"""Of the spacing: how far from a size its limits are."""
Given = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Lattice:
    """log2 of the sizes along each dim, evenly spaced; log of the microseconds at each point."""

    axes: tuple[Floats, ...]
    log_us: Floats

    def at(self, sizes: Floats) -> Floats:
        """Log microseconds at `sizes` `[axes, n]` (log2), by the nearest edge outside."""
        cells = np.array(self.log_us.shape)[:, None] - 1
        first, last = ends_of(self.axes)
        place = clipped((sizes - first) / (last - first) * cells, 0.0, cells)
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
        first, last = ends_of(self.axes)
        steps = np.diag(_REACH_FRAC * np.array([axis[1] - axis[0] for axis in self.axes]))
        reach = steps.sum(axis=0)[:, None]
        count = len(steps)
        ways = np.concatenate([-steps, steps]).T[:, :, None]
        moved = (sizes[:, None] + ways).reshape(count, -1)
        below, above = self.at(moved).reshape(2, count, -1)
        least = np.where(sizes - reach >= first, below, -np.inf).max(axis=0)
        is_within = (sizes + reach <= last).all(axis=0)
        return least, np.where(is_within, above.min(axis=0), np.inf)


def ends_of(axes: tuple[Floats, ...]) -> tuple[Floats, Floats]:
    """(first, last) size on each axis `[axes, 1]`."""
    first, last = np.array([[axis[0], axis[-1]] for axis in axes]).T[:, :, None]
    return first, last


def has_lattice(part: Part) -> bool:
    """Whether times of the part's ops are kept near those of a lattice."""
    return part.fitted.build == _BUILD or part.fitted.name == _ROWS_PART


def _is_by_row(op: str) -> bool:
    return op in BY_ROW and OPS[op].dims == ("rows", "cols")


def limits_us(part: Part, rows: Rows, device: Device) -> tuple[Floats, Floats]:
    """(least, most) microseconds of each row; a batch of an op that usually has none has none."""
    least, most = np.zeros(len(rows)), np.full(len(rows), np.inf)
    given = {name: _given(rows, name) for name in _GIVEN if name in rows.dims}
    for (op, dtype, way, timing), index in rows.grouped(lambda kind: kind):
        if way != _FORWARD or not (part.fitted.build == _BUILD or _is_by_row(op)):
            continue
        dims, names = rows.dims_of(op, index), OPS[op].dims
        first, last = ends_of(_axes(op, dtype))
        sizes = np.log2([dims[name] for name in names])
        on_lattice = ((sizes >= first) & (sizes <= last)).all(axis=0)
        if "b" in dims and "b" not in names:
            on_lattice &= dims["b"] == 1.0
        along = [dims[name] for name in names if name in _ALONG]
        is_aligned = (np.mod(along, _ALIGNED) == 0.0).all(axis=0)
        columns = {name: column[index] for name, column in given.items()}
        for values, own in _by_value(columns, np.flatnonzero(on_lattice)):
            what = op, dtype, timing, values
            known = _lattice(OfDevice((id(part), *what), device, (part, *what)))
            low, high = np.exp(known.limits(sizes[:, own]))
            most[index[own]] = np.where(is_aligned[own], high, np.inf)
            least[index[own]] = np.minimum(low, most[index[own]])
    return least, most


def _by_value(columns: Mapping[str, Floats], index: Ints) -> Iterator[tuple[Given, Ints]]:
    """(the values of `columns` that are known, the rows of `index` that have them)."""
    for column in columns.values():
        values = distinct(column[index])
        if len(values) > 1:
            for value in values:
                yield from _by_value(columns, index[column[index] == value])
            return
    if len(index):
        known = ((name, float(column[index[0]])) for name, column in columns.items())
        yield tuple(pair for pair in known if pair[1] != _NONE), index


def _given(rows: Rows, name: str) -> Floats:
    """The dim `name` per row; -1 where there is none, or no framework is known."""
    values = rows.dims[name]
    is_known = values > 0.0 if name == FRAMEWORK else values == values
    return np.where(is_known, values, _NONE)


@lru_cache(maxsize=1024)
def _lattice(asked: OfDevice) -> Lattice:
    part, op, dtype, timing, given = asked.by
    axes = _axes(op, dtype)
    sizes = [2.0 ** each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
    count = len(sizes[0])
    dims = {name: np.full(count, value) for name, value in given}
    dims |= dict(zip(OPS[op].dims, sizes, strict=True))
    rows = Rows((op,) * count, (dtype,) * count, (_FORWARD,) * count, (timing,) * count, dims)
    us = part.kernels(rows, asked.device, part.cells(rows, describe(asked.device))).us
    return Lattice(axes, monotone_midway(np.log(us).reshape([len(each) for each in axes])))


@lru_cache(maxsize=64)
def _axes(op: str, dtype: str) -> tuple[Floats, ...]:
    """log2 of the sizes along b (where there are batches), m, n and k; along rows and columns."""
    least, dims = max(_MIN_LOG2, np.log2(_BLOCK.get(dtype, 1.0))), OPS[op].dims
    if _is_by_row(op):
        return np.arange(0.0, _MAX_ROWS_LOG2, _STEP_LOG2), np.arange(least, _MAX_LOG2, _STEP_LOG2)
    is_batched = "b" in dims
    step = _BATCHED_STEP_LOG2 if is_batched else _STEP_LOG2
    sides = np.arange(least, _MAX_BATCHED_LOG2 if is_batched else _MAX_LOG2, step)
    return np.arange(0.0, _MAX_LOG2, step), *(sides,) * (len(dims) - 1)


def monotone_midway(values: Floats) -> Floats:
    """Midway between the least above `values` and the largest below that rise on each axis."""
    above, below = values, values
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray(0.5 * (above + below))
