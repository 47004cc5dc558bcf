"""Answers that never fall for more work: curves over size, lattices of sizes, widths of types.

The two were measured in other libraries, and short ones in fp32 hardly at all, so what was learned
of each may contradict it.

Trees answer in steps, some of them downwards. On the lattice times are made to rise with every
dim, and between its points they are interpolated. A product, norm or softmax then takes at least
what the lattice says of one smaller in a dim by a quarter of its spacing, and at most what it says
of one larger by as much: tiles and waves may step so far, and one of twice a dim never takes less.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, clipped, distinct
from perfmodel.cost.gpu.analysis import Analysis
from perfmodel.cost.gpu.rates import bound_us, matrix_flop_per_us
from perfmodel.cost.learned.features import BUILDS, BY_ROW
from perfmodel.cost.learned.part import Part
from perfmodel.hardware import Device
from perfmodel.ops.rows import FIRST_TURNED, FRAMEWORK, KERNEL, SECOND_TURNED, Kind, Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import MATMUL

NARROW, WIDE = ("fp16", "bf16"), "fp32"
_ALIGNED_ELEMENTS = 8.0
"""Elements of 16 bits in the 16 bytes that rows of operands start at multiples of."""


def may_be_widened(rows: Rows, device: Device) -> Ints:
    """The products among `rows` that may be slower than in fp32: narrow and aligned."""

    def is_narrow(kind: Kind) -> bool:
        if kind.dtype not in NARROW or OPS[kind.op].family != MATMUL:
            return False
        narrow, wide = matrix_flop_per_us(device, [kind.dtype, WIDE]).tolist()
        return bool(narrow > wide)

    narrow = np.flatnonzero(rows.of_kinds(is_narrow, bool))
    if len(narrow):
        n, k = (rows.dims[name][narrow] for name in ("n", "k"))
        narrow = narrow[_are_aligned([n, k], _ALIGNED_ELEMENTS)]
    return narrow


def least_in_fp32_us(analysis: Analysis, device: Device) -> Floats:
    """What products in 16 bits take in fp32 at least: at its peak, of twice the bytes."""
    compute_us = analysis.flop / matrix_flop_per_us(device, [WIDE])
    moved_bytes = 2.0 * (analysis.read_bytes + analysis.written_bytes)
    return np.maximum(compute_us, bound_us(moved_bytes, device))


def _are_aligned(sides: list[Floats], elements: float) -> Mask:
    return np.asarray(np.mod(sides, elements).max(axis=0) == 0.0)


def as_fp32(rows: Rows) -> Rows:
    """The same rows in fp32."""
    return replace(rows, dtype=(WIDE,) * len(rows))


CURVE_BUILD = "stream"
_KNOTS = 2.0 ** np.arange(0.0, 40.5, 0.5)
"""Elements between which the logarithm of the time is interpolated."""
_PLAIN_DIMS = ("rows", "cols")


def has_curve(part: Part, op: str) -> bool:
    """Whether the time of `op` is a matter of its number of elements alone."""
    return part.build == CURVE_BUILD and op not in BY_ROW and _is_shapeless(op)


@lru_cache(maxsize=128)
def _is_shapeless(op: str) -> bool:
    """Whether a row and a column of as many elements move the same bytes."""
    spec, one, many = OPS[op], np.ones(1), np.full(1, 64.0)
    if set(spec.dims) != set(_PLAIN_DIMS):
        return False
    shapes = ({"rows": one, "cols": many}, {"rows": many, "cols": one})
    usual = {name: np.full(1, value) for name, value in spec.defaults.items()}
    row, column = (float(spec.read_bytes(usual | shape, one)[0]) for shape in shapes)
    return row == column


@dataclass(frozen=True)
class Key:
    """What a curve is of; parts are told apart by their trees, devices by their text."""

    part: Part
    op: str
    dtype: str
    device: Device
    timing: str = KERNEL
    given: tuple[tuple[str, float], ...] = ()
    """Dims that are no size, with their values."""

    def on(self, device: Device) -> Key:
        """The same of another device."""
        return replace(self, device=device)

    def rows(self, sizes: Mapping[str, Floats]) -> Rows:
        """Rows of these `sizes`, each `[n]`."""
        count = len(next(iter(sizes.values())))
        texts = self.op, self.dtype, FORWARD, self.timing
        op, dtype, direction, timing = ((each,) * count for each in texts)
        given = {name: np.full(count, value) for name, value in self.given}
        return Rows(op, dtype, direction, timing, {**given, **sizes})

    def _rows_of(self) -> tuple[Hashable, ...]:
        return self.op, self.dtype, self.timing, self.given

    def __hash__(self) -> int:
        return hash((id(self.part.trees), self._rows_of(), self.device.name))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Key)
            and self.part.trees is other.part.trees
            and self._rows_of() == other._rows_of()
            and self.device == other.device
        )


def log_us_of(part: Part, op: str, dtype: str, device: Device, elements: Floats) -> Floats:
    """Logarithm of the kernel's microseconds for each number of `elements` `[n]`."""
    return np.asarray(
        np.interp(np.log(elements), np.log(_KNOTS), _curve(Key(part, op, dtype, device)))
    )


def _curve_of(key: Key) -> Floats:
    count = len(_KNOTS)
    rows = key.rows({"rows": _KNOTS, "cols": np.ones(count)})
    columns = BUILDS[key.part.build](rows, key.device, key.part.tiles)
    groups = list(rows.groups())
    known = key.part.known_to(key.op, key.dtype)
    factors = key.part.log_factors(columns, groups, key.device, known).factors
    sources = key.part.standing(known, key.device).sources
    factors *= key.part.support(key.op, key.dtype, columns, np.arange(count), sources)
    log_us = np.log(np.maximum(columns.base_us * np.exp(factors), columns.bound_us))
    return np.asarray(np.maximum.accumulate(log_us))


_curve = lru_cache(maxsize=512)(_curve_of)


LATTICE_BUILD, ROWS_PART = "matmul", "vector_rows"
"""Of norms and softmax, those in fp32. In 16 bits two boards tell of few lengths of rows, and the
lattice between them is a guess: layer norms of an H100, half given, 1.4 % off, 7.2 with it."""
FORWARD = "fwd"
_GIVEN = (FRAMEWORK, "warm", FIRST_TURNED, SECOND_TURNED, "strided")
"""Dims that are no size: each of their values has a lattice of its own."""
_BATCH = "b"
_NONE = -1.0
_ALONG = ("n", "k", "cols")
"""Dims along which elements follow one another."""
_ALIGNED = 8.0
"""Elements that rows of operands start at multiples of, so that the same kernels run: points of
the lattice are aligned, and cap the time of aligned ones only."""
_BLOCK = {"fp8_block": 128.0}
"""Elements of a side that are scaled together: shorter sides are of one block."""
_MIN_LOG2, _MAX_LOG2, _MAX_BATCHED_LOG2, _MAX_ROWS_LOG2 = 5.0, 16.0, 14.0, 24.0
_STEP_LOG2, _BATCHED_STEP_LOG2 = 1.0, 2.0
"""Spacing: points at powers of two are as aligned as programs' sizes are; more than 2,000 points of
batches would take longer than what is asked about. Chosen, with the reach, on rows that the fits
had not drawn: the mean absolute logarithm of layers is 1.00 (16 bits and fp32) and 0.97 (fewer
bits) of that of twice the spacing with a reach of half, that of batches 1.03."""
_REACH_FRAC = 0.25
"""Of the spacing: how far from a product its limits are."""
_AT_ONCE = 500
"""Points asked about at once: few enough for the walk that needs no XGBoost."""
_BETWEEN_AT_ONCE = 8192
"""Sizes interpolated at once: few enough for a processor's cache."""
Kernels = Callable[[Part, Rows, Device], Floats]
"""Microseconds of each row as the trees tell them."""


@dataclass(frozen=True)
class Lattice:
    """log2 of the sizes along each dim, evenly spaced; log of the microseconds at each point."""

    axes: tuple[Floats, ...]
    log_us: Floats

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        return _ends_of(self.axes)

    @cached_property
    def _reach(self) -> tuple[Floats, Floats]:
        """(how far limits are `[axes, 1]`; the ways there, down each axis, then up each, `[axes,
        2 x axes, 1]`)."""
        reach = _REACH_FRAC * np.array([axis[1] - axis[0] for axis in self.axes])
        ways = np.diag(reach)
        return reach[:, None], np.concatenate([-ways, ways]).T[:, :, None]

    @cached_property
    def _places(self) -> tuple[Ints, list[int], Floats]:
        """(places between neighbours on each axis, from a cell to each of its corners, all log
        microseconds)."""
        strides = np.cumprod([1, *reversed(self.log_us.shape[1:])])[::-1]
        corners = strides @ np.indices([2] * len(strides)).reshape(len(strides), -1)
        return strides, corners.tolist(), self.log_us.ravel()

    def at(self, sizes: Floats) -> Floats:
        """Log microseconds at `sizes` `[axes, n]` (log2), by the nearest edge outside."""
        begins = range(0, sizes.shape[1], _BETWEEN_AT_ONCE)
        parts = [self._at(sizes[:, begin : begin + _BETWEEN_AT_ONCE]) for begin in begins]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _at(self, sizes: Floats) -> Floats:
        cells = np.array(self.log_us.shape)[:, None] - 1
        (first, last), (strides, corners, log_us) = self._ends, self._places
        place = clipped((sizes - first) / (last - first) * cells, 0.0, cells)
        low = np.minimum(place.astype(np.int64), cells - 1)
        cell = strides @ low
        values = [log_us[corner:].take(cell, mode="clip") for corner in corners]
        for share in (place - low)[::-1]:
            for below, above in zip(values[::2], values[1::2], strict=True):
                above -= below
                above *= share
                below += above
            values = values[::2]
        return np.asarray(values[0])

    def limits(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Log microseconds (least, most) at `sizes` `[axes, n]` (log2) on it; none where what
        limits them lies beyond an edge."""
        count, (first, last), (reach, ways) = len(sizes), self._ends, self._reach
        moved = (sizes[:, None] + ways).reshape(count, -1)
        below, above = self.at(moved).reshape(2, count, -1)
        least = np.where(sizes - reach >= first, below, -np.inf).max(axis=0)
        is_within = (sizes + reach <= last).all(axis=0)
        return least, np.where(is_within, above.min(axis=0), np.inf)


def _ends_of(axes: tuple[Floats, ...]) -> tuple[Floats, Floats]:
    """(first, last) size on each axis `[axes, 1]`."""
    first, last = np.array([[axis[0], axis[-1]] for axis in axes]).T[:, :, None]
    return first, last


def has_lattice(part: Part) -> bool:
    """Whether times of the part's ops are held near those of a lattice."""
    return part.build == LATTICE_BUILD or part.name == ROWS_PART


def _is_by_row(op: str) -> bool:
    """Whether the time of `op` is a matter of its rows and of their length."""
    return op in BY_ROW and OPS[op].dims == _PLAIN_DIMS


def _as_asked(kind: Kind) -> tuple[str, str, str, str]:
    return kind.op, kind.dtype, kind.timing, kind.direction


def limits_us(part: Part, rows: Rows, device: Device, kernels: Kernels) -> tuple[Floats, Floats]:
    """(least, most) microseconds of each row.

    Those of a batch, where the op usually has none, have no limits.
    """
    least, most = np.zeros(len(rows)), np.full(len(rows), np.inf)
    given = {name: _given(rows, name) for name in _GIVEN if name in rows.dims}
    for (op, dtype, timing, way), index in rows.grouped(_as_asked):
        if way != FORWARD or not (part.build == LATTICE_BUILD or _is_by_row(op)):
            continue
        dims = rows.dims_of(op, index)
        sizes, (first, last) = np.log2([dims[name] for name in OPS[op].dims]), _ends(op, dtype)
        on_lattice = ((sizes >= first) & (sizes <= last)).all(axis=0)
        if _BATCH in dims and _BATCH not in OPS[op].dims:
            on_lattice &= dims[_BATCH] == 1.0
        columns = {name: column[index] for name, column in given.items()}
        for values, own in _alike(columns, np.flatnonzero(on_lattice)):
            key = Key(part, op, dtype, device, timing, values)
            low, high = np.exp(_lattices(kernels)(key).limits(sizes[:, own]))
            along = [dims[name][own] for name in OPS[op].dims if name in _ALONG]
            is_aligned = _are_aligned(along, _ALIGNED)
            most[index[own]] = np.where(is_aligned, high, np.inf)
            least[index[own]] = np.minimum(low, most[index[own]])
    return least, most


def _alike(
    columns: Mapping[str, Floats], index: Ints
) -> Iterator[tuple[tuple[tuple[str, float], ...], Ints]]:
    """(what is known of `columns`, those of the rows `index` of which it is), each once."""
    for column in columns.values():
        values = distinct(column[index])
        if len(values) > 1:
            for value in values:
                yield from _alike(columns, index[column[index] == value])
            return
    if len(index):
        known = ((name, float(column[index[0]])) for name, column in columns.items())
        yield tuple(pair for pair in known if pair[1] != _NONE), index


def _given(rows: Rows, name: str) -> Floats:
    """The dim `name` per row; -1 where there is none, or no framework is known."""
    values = rows.dims[name]
    is_known = values > 0.0 if name == FRAMEWORK else values == values
    return np.where(is_known, values, _NONE)


@lru_cache(maxsize=8)
def _lattices(kernels: Kernels) -> Callable[[Key], Lattice]:
    """The lattice of one op and dtype on one device, made once."""
    return lru_cache(maxsize=1024)(partial(_lattice, kernels))


def _lattice(kernels: Kernels, key: Key) -> Lattice:
    axes = _axes(key.op, key.dtype)
    sizes = [2.0 ** each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
    count = len(sizes[0])
    rows = key.rows(dict(zip(OPS[key.op].dims, sizes, strict=True)))
    pieces = [np.arange(begin, min(begin + _AT_ONCE, count)) for begin in range(0, count, _AT_ONCE)]
    us = np.concatenate([kernels(key.part, rows.take(piece), key.device) for piece in pieces])
    log_us = np.log(us).reshape([len(each) for each in axes])
    return Lattice(axes, monotone_midway(log_us))


@lru_cache(maxsize=64)
def _ends(op: str, dtype: str) -> tuple[Floats, Floats]:
    return _ends_of(_axes(op, dtype))


@lru_cache(maxsize=64)
def _axes(op: str, dtype: str) -> tuple[Floats, ...]:
    """log2 of the sizes along b (where there are batches), m, n and k; along rows and columns."""
    least = max(_MIN_LOG2, np.log2(_BLOCK.get(dtype, 1.0)))
    if _is_by_row(op):
        return np.arange(0.0, _MAX_ROWS_LOG2, _STEP_LOG2), np.arange(least, _MAX_LOG2, _STEP_LOG2)
    if _BATCH not in OPS[op].dims:
        sides = np.arange(least, _MAX_LOG2, _STEP_LOG2)
        return np.arange(0.0, _MAX_LOG2, _STEP_LOG2), sides, sides
    sides = np.arange(least, _MAX_BATCHED_LOG2, _BATCHED_STEP_LOG2)
    return np.arange(0.0, _MAX_LOG2, _BATCHED_STEP_LOG2), sides, sides, sides


def monotone_midway(values: Floats) -> Floats:
    """Midway between the least above `values` and the largest below that rise on each axis."""
    above, below = values, values
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray(0.5 * (above + below))
