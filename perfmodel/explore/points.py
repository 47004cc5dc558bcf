"""Points of a sweep as columns: one value of every axis per point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.trace.columns import Ints

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
