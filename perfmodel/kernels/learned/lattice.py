"""Products that take no less for more: times held near those of a lattice of sizes.

Trees answer in steps, some of them downwards. On the lattice times are made to rise with every
dim, and between its points they are interpolated. A product then takes at least what the lattice
says where a dim is smaller by its reach, and at most what it says where one is larger by as much,
each but for `STEP_FRAC`: tiles and waves may step so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.learned.curves import Key
from perfmodel.kernels.learned.part import Part
from perfmodel.ops.rows import KERNEL, Ints, Rows
from perfmodel.ops.spec import OPS, Floats

BUILD = "matmul"
STEP_FRAC = 0.1
_DIMS = ("b", "m", "n", "k")
_USUAL_ALIGNED = 8.0
_ALIGNED = {"fp8_block": 128.0}
"""Elements that rows of operands start at multiples of, so that the same kernels run: points of
the lattice are aligned, and cap the time of aligned products only."""
_LEAST_LOG2, _MOST_LOG2 = 5.0, 15.0
_AT_ONCE = 4096
Kernels = Callable[[Part, Rows, Device], Floats]
"""Microseconds of each row as the trees tell them."""


@dataclass(frozen=True)
class Lattice:
    """log2 of the sizes along b, m, n and k, evenly spaced; log of the microseconds at each."""

    axes: tuple[Floats, ...]
    log_us: Floats
    reach: Floats
    """log2 of how much larger a dim has to be for a product to take no less, halved; per axis."""

    def at(self, sizes: Floats) -> Floats:
        """Log microseconds at `sizes` `[axes, n]` (log2), by the nearest edge outside."""
        count = np.array([len(each) for each in self.axes])[:, None]
        begin, end = (np.array([each[place] for each in self.axes])[:, None] for place in (0, -1))
        step = np.maximum(end - begin, 1.0) / np.maximum(count - 1, 1)
        place = np.clip((sizes - begin) / step, 0.0, count - 1.0)
        low = np.minimum(place.astype(np.int64), np.maximum(count - 2, 0))
        share = place - low
        strides = np.cumprod([1, *reversed(self.log_us.shape[1:])])[::-1]
        found, flat, first = np.zeros(sizes.shape[1]), self.log_us.ravel(), strides @ low
        for corner in product(*((0, 1) if each > 1 else (0,) for each in self.log_us.shape)):
            is_upper = np.array(corner, bool)[:, None]
            weight = np.where(is_upper, share, 1.0 - share).prod(axis=0)
            found += weight * flat[first + strides @ np.array(corner)]
        return found

    def limits(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Log microseconds (least, most) at `sizes` `[axes, n]` (log2), without limit outside."""
        begins, ends = (np.array([each[end] for each in self.axes])[:, None] for end in (0, -1))
        moves = np.diag(self.reach)[self.reach > 0.0]
        inside = (sizes >= begins).all(axis=0)
        below = inside & (sizes <= ends).all(axis=0)
        within = inside & (sizes + self.reach[:, None] <= ends).all(axis=0)
        moved = sizes[:, None] + np.concatenate([-moves, moves]).T[:, :, None]
        around = self.at(moved.reshape(len(sizes), -1)).reshape(2, len(moves), -1)
        least, most = around[0].max(axis=0), around[1].min(axis=0)
        step = np.log1p(STEP_FRAC)
        return np.where(below, least - step, -np.inf), np.where(within, most + step, np.inf)


def has_lattice(part: Part) -> bool:
    """Whether times of `part` are held near those of a lattice."""
    return part.build == BUILD


def limits_us(
    part: Part, rows: Rows, index: Ints, device: Device, kernels: Kernels
) -> tuple[Floats, Floats]:
    """(least, most) microseconds of the rows `index`, all of one op."""
    least, most = np.zeros((2, len(index)))
    op, dims = rows.op[index[0]], rows.dims_of(rows.op[index[0]], index)
    sizes = np.log2(np.stack([np.broadcast_to(dims[name], len(index)) for name in _DIMS]))
    dtypes = np.array([rows.dtype[row] for row in index.tolist()], object)
    for dtype in dict.fromkeys(dtypes.tolist()):
        own = np.flatnonzero(dtypes == dtype)
        low, high = lattice_of(Key(part, op, dtype, device), kernels).limits(sizes[:, own])
        elements = _ALIGNED.get(dtype, _USUAL_ALIGNED)
        aligned = np.mod(dims["n"][own], elements) + np.mod(dims["k"][own], elements) == 0.0
        least[own], most[own] = np.exp(low), np.where(aligned, np.exp(high), np.inf)
    return least, most


@lru_cache(maxsize=128)
def lattice_of(key: Key, kernels: Kernels) -> Lattice:
    """The lattice of one op and dtype on one device; products of a batch have a coarser one."""
    least = max(_LEAST_LOG2, np.log2(_ALIGNED.get(key.dtype, 1.0)))
    if "b" in OPS[key.op].dims:
        one = np.arange(least, _MOST_LOG2, 1.5)
        axes = (np.arange(0.0, 17.0, 2.0), np.arange(0.0, _MOST_LOG2, 2.0), one, one)
        reach = np.ones(4)
    else:
        one = np.arange(least, _MOST_LOG2 + 1.0)
        axes = (np.zeros(1), np.arange(0.0, _MOST_LOG2 + 1.0), one, one)
        reach = np.array([0.0, 0.5, 0.5, 0.5])
    sizes = [2.0 ** each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
    count = len(sizes[0])
    dims = dict(zip(_DIMS, map(np.round, sizes), strict=True))
    rows = Rows((key.op,) * count, (key.dtype,) * count, ("fwd",) * count, (KERNEL,) * count, dims)
    parts = [np.arange(count)[begin : begin + _AT_ONCE] for begin in range(0, count, _AT_ONCE)]
    found = np.concatenate([kernels(key.part, rows.take(part), key.device) for part in parts])
    log_us = np.log(found).reshape([len(each) for each in axes])
    return Lattice(axes, rising(log_us), reach)


def rising(values: Floats) -> Floats:
    """Midway between the least above `values` and the largest below that rise on each axis."""
    above, below = values, values
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray(0.5 * (above + below))
