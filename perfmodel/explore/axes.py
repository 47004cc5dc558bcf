"""Axes of a sweep and its points: a full grid, a Latin hypercube, or a table."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import UsageError
from perfmodel.schema import Limits

Value = float | int | str | bool | tuple[Any, ...]


@dataclass(frozen=True)
class Points:
    """`n` points; per axis the distinct values, and which of them each point has."""

    values: Mapping[str, Sequence[Any]]
    code: Mapping[str, Ints]
    count: int

    def __len__(self) -> int:
        return self.count

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> Points:
        """From a column of values per axis, all of one length; an empty mapping is one point."""
        values: dict[str, Sequence[Any]] = {}
        code: dict[str, Ints] = {}
        for axis, column in columns.items():
            place: dict[Any, int] = {}
            marks = [place.setdefault((type(each), each), len(place)) for each in column]
            values[axis] = [each for _, each in place]
            code[axis] = np.array(marks, np.int64)
        return cls(values, code, len(next(iter(columns.values()))) if columns else 1)

    def take(self, index: Ints) -> Points:
        """The points at `index`."""
        return Points(self.values, {a: code[index] for a, code in self.code.items()}, len(index))

    def at(self, point: int) -> dict[str, Any]:
        """The values of one point by axis."""
        return {axis: self.values[axis][code[point]] for axis, code in self.code.items()}

    def column(self, axis: str) -> list[Any]:
        """The values of one axis."""
        values = self.values[axis]
        return [values[at] for at in self.code[axis].tolist()]

    def groups(self, axes: Sequence[str]) -> tuple[list[tuple[Any, ...]], Ints, Ints]:
        """(values of `axes` per group of points that share them, the first point of each, which
        group each point is in)."""
        joined = np.zeros(self.count, np.int64)
        for axis in axes:
            pair = joined * len(self.values[axis]) + self.code[axis]
            joined = np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)
        first = np.unique(joined, return_index=True)[1].astype(np.int64)
        keys = [
            tuple(self.values[axis][self.code[axis][at]] for axis in axes) for at in first.tolist()
        ]
        return keys, first, joined


LOG = "log"
GRID, LATIN, TABLE = "grid", "latin_hypercube", "table"
MAX_POINTS = 1 << 40
MAX_STEPS = 10**7
"""Of one axis, whose values are held."""


def whole_number(axis: str, value: Any) -> int:
    """A value of an axis of counts, which a table may hold as a float; `UsageError` for a part."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value % 1:
        raise UsageError(f"axis {axis}: expected a whole number, got {str(value)[:30]!r}")
    return int(value)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `whole` where both ends are written as whole numbers."""

    low: float
    high: float
    steps: Annotated[int, Limits(1, MAX_STEPS)] | None = None
    scale: Literal["linear", "log"] = "linear"
    whole: bool = False

    def at(self, share: Floats) -> list[float] | list[int]:
        """The numbers at shares (0 to 1) of the way from `low` to `high`."""
        if self.scale == LOG:
            values = self.low * (self.high / self.low) ** share
        else:
            values = self.low + (self.high - self.low) * share
        if self.whole:
            return [int(value) for value in np.round(values).tolist()]
        return [float(value) for value in np.clip(values, self.low, self.high).tolist()]

    def levels(self) -> list[float] | list[int]:
        """`steps` numbers, both ends among them; of whole numbers no one twice."""
        assert self.steps is not None
        share = np.linspace(0.0, 1.0, self.steps) if self.steps > 1 else np.zeros(1)
        return list(dict.fromkeys(self.at(share)))


Axis = Range | tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """All points of a sweep, by their number; none is held before it is asked for."""

    axes: Mapping[str, Axis]
    sample: str = GRID
    drawn: int = 0
    """Points of a Latin hypercube."""
    seed: int = 0

    @cached_property
    def levels(self) -> dict[str, Sequence[Any]]:
        """Per axis of a grid or a table, its values in order."""
        return {
            name: axis.levels() if isinstance(axis, Range) else axis
            for name, axis in self.axes.items()
        }

    @cached_property
    def values(self) -> dict[str, Sequence[Any]]:
        """Per axis, the distinct values that occur, or the ends of its range."""
        if self.sample == LATIN:
            return {
                name: axis.at(np.array([0.0, 1.0])) if isinstance(axis, Range) else axis
                for name, axis in self.axes.items()
            }
        return {name: list(dict.fromkeys(each)) for name, each in self.levels.items()}

    def rounded(self) -> list[str]:
        """A line per axis of a grid whose steps are fewer, as whole numbers that are equal after
        rounding are one."""
        return [
            f"axis {name}: {axis.steps} steps from {axis.low:,.12g} to {axis.high:,.12g} are "
            f"{len(self.levels[name])} different whole numbers, and so many points"
            for name, axis in self.axes.items()
            if self.sample == GRID and isinstance(axis, Range) and axis.whole
            if axis.steps is not None and len(self.levels[name]) < axis.steps
        ]

    def __len__(self) -> int:
        if self.sample == LATIN:
            return self.drawn
        sizes = [len(each) for each in self.levels.values()]
        if self.sample == TABLE:
            return sizes[0] if sizes else 0
        count = prod(sizes)
        if count > MAX_POINTS:
            raise UsageError(f"a grid of {count:g} points: expected at most {MAX_POINTS:g}")
        return count

    def points(self, begin: int, end: int) -> Points:
        """The points numbered from `begin` to before `end`."""
        number = np.arange(begin, end, dtype=np.int64)
        if self.sample == LATIN:
            return Points.of({name: self._drawn(name, number) for name in self.axes})
        if self.sample == TABLE:
            return Points.of({name: each[begin:end] for name, each in self.levels.items()})
        code: dict[str, Ints] = {}
        for name in reversed(self.levels):
            size = len(self.levels[name])
            code[name], number = number % size, number // size
        return Points(self.levels, {name: code[name] for name in self.levels}, end - begin)

    @cached_property
    def _shares(self) -> dict[str, Floats]:
        """Per axis one number in each of as many equal shares as points, in random order."""
        shares = {}
        for name in self.axes:
            rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
            order = rng.permutation(self.drawn)
            shares[name] = (order + rng.random(self.drawn)) / self.drawn
        return shares

    def _drawn(self, name: str, number: Ints) -> Sequence[Any]:
        share, axis = self._shares[name][number], self.axes[name]
        if isinstance(axis, Range):
            return axis.at(share)
        place = np.minimum((share * len(axis)).astype(np.int64), len(axis) - 1)
        return [axis[at] for at in place.tolist()]
