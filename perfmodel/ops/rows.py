"""Rows of the measurement table as columns: what kernel models are asked about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelError
from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec
from perfmodel.ops.storage import item_bytes

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
MOST = 1e15
"""A dim can be no larger: products of several stay far from overflow."""
LEAST_MEAN = 1e-9
KERNEL = "profiler_kernel"
"""`timing` of a kernel as it runs inside a program: without a launch floor."""


@dataclass(frozen=True)
class Rows:
    """`n` rows: four text columns, and every dim that any of them has (NaN where a row has none).

    A dim `cold` of 1 says that the caches were flushed before the call.

    `timing` says how a time was, or would be, measured: it decides what floor the time contains.
    """

    op: tuple[str, ...]
    dtype: tuple[str, ...]
    direction: tuple[str, ...]
    timing: tuple[str, ...]
    dims: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> Rows:
        """From one mapping per row: `op`, dims, and where not usual `dtype direction timing`."""
        texts = ("op", "dtype", "direction", "timing")
        names = sorted({name for record in records for name in record} - set(texts))
        dims = {
            name: np.array([record.get(name, np.nan) for record in records], np.float64)
            for name in names
        }
        return cls(
            tuple(record["op"] for record in records),
            tuple(record.get("dtype", "fp32") for record in records),
            tuple(record.get("direction", "fwd") for record in records),
            tuple(record.get("timing", KERNEL) for record in records),
            dims,
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Rows:
        """From a frame in the measurement-table schema; columns that are no dims are ignored.

        Raises `ModelError` for a frame without ops and for a dim that is no number.
        """
        op = _texts(frame, "op", "")
        known = {name for each in set(op) if each in OPS for name in _dims_of(OPS[each])}
        return cls(
            op,
            _texts(frame, "dtype", "fp32"),
            _texts(frame, "direction", "fwd"),
            _texts(frame, "timing", KERNEL),
            {name: _numbers(frame, name) for name in known if name in frame} | _cold(frame),
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all `parts`, in turn."""
        names = sorted({name for part in parts for name in part.dims})

        def column(name: str) -> Floats:
            none = [part.dims.get(name, np.full(len(part), np.nan)) for part in parts]
            return np.concatenate(none) if none else np.zeros(0)

        return cls(
            tuple(each for part in parts for each in part.op),
            tuple(each for part in parts for each in part.dtype),
            tuple(each for part in parts for each in part.direction),
            tuple(each for part in parts for each in part.timing),
            {name: column(name) for name in names},
        )

    def take(self, index: Ints) -> Rows:
        """The rows at `index`, in that order."""

        def texts(column: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(column[i] for i in index.tolist())

        return Rows(
            texts(self.op),
            texts(self.dtype),
            texts(self.direction),
            texts(self.timing),
            {name: values[index] for name, values in self.dims.items()},
        )

    def groups(self) -> Iterator[tuple[str, Ints]]:
        """(op, its rows) for every op that occurs, in order of first sight."""
        rows_of: dict[str, list[int]] = {}
        for row, op in enumerate(self.op):
            rows_of.setdefault(op, []).append(row)
        for op, rows in rows_of.items():
            yield op, np.array(rows, np.int64)

    def dims_of(self, op: str, index: Ints) -> Dims:
        """Checked dims of the rows `index`, all of `op`, defaults filled in.

        Raises `ModelError` that names the op, the row and the dim for a dim that is missing, below
        1 or above `MOST`.
        """
        spec = OPS[op]
        names = _dims_of(spec)
        nothing = np.full(len(index), np.nan)
        values = np.array(
            [self.dims[name][index] if name in self.dims else nothing for name in names]
        )
        usual = np.array([spec.defaults.get(name, np.nan) for name in names])[:, None]
        least = np.array([_least(spec, name) for name in names])[:, None]
        values = np.where(np.isnan(values), usual, values)
        is_good = (values >= least) & (values <= MOST)
        if not is_good.all():
            dim, row = np.argwhere(~is_good)[0]
            value = values[dim, row]
            what = "is missing" if np.isnan(value) else f"is {value:g}"
            limit = f"at most {MOST:g}" if value > MOST else f"at least {least[dim, 0]:g}"
            raise ModelError(f"{op} (row {index[row]}): {names[dim]} {what}; expected {limit}")
        found = dict(zip(names, values, strict=True))
        for group in spec.one_of:
            given = np.max([found[name] for name in group], axis=0) > 0
            if not given.all():
                row = index[np.flatnonzero(~given)[0]]
                raise ModelError(f"{op} (row {row}): {group[0]} is missing; expected at least 1")
        return found

    def item_bytes(self, index: Ints) -> Floats:
        """Bytes per element of the rows `index`; `ModelError` for an unknown dtype."""
        return item_bytes([self.dtype[row] for row in index.tolist()])


def _dims_of(spec: OpSpec) -> tuple[str, ...]:
    return (*spec.dims, *spec.defaults)


def _least(spec: OpSpec, name: str) -> float:
    if name in spec.defaults:
        return 0.0
    return LEAST_MEAN if name in spec.means else 1.0


def _texts(frame: pd.DataFrame, column: str, usual: str) -> tuple[str, ...]:
    """The texts of a column, `usual` where there are none."""
    if column not in frame:
        return (usual,) * len(frame)
    values = frame[column].tolist()
    return tuple(each if isinstance(each, str) else _text(each, usual) for each in values)


def _text(value: object, usual: str) -> str:
    import pandas as pd

    return usual if pd.isna(value) else str(value)


def _numbers(frame: pd.DataFrame, column: str) -> Floats:
    try:
        return np.asarray(frame[column].to_numpy(np.float64))
    except (ValueError, TypeError) as error:
        raise ModelError(f"column {column}: {error}") from None


def _cold(frame: pd.DataFrame) -> dict[str, Floats]:
    """Of a frame with a column `cache`: `cold`, 1 where it was flushed before the call, else 0."""
    if "cache" not in frame:
        return {}
    return {"cold": (frame["cache"] == "cold").to_numpy(np.float64)}
