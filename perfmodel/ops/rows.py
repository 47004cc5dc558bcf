"""Rows of the measurement table as columns: what kernel models are asked about."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import ModelError
from perfmodel.ops.spec import OPS, Dims, formula, item_bytes

if TYPE_CHECKING:
    import pandas as pd


MOST = 1e15
"""A dim can be no larger: products of several stay far from overflow."""
MIN_MEAN = 1 / MOST
"""A mean is no smaller: one value beside as many as there can be."""
KERNEL = "profiler_kernel"
"""`timing` of a kernel as it runs inside a program: without a launch floor."""
BEHIND_WORK = "event_behind_work"
"""Timing of a kernel whose launch hid behind other work, less what events around no call show."""


TORCH = "torch"
FRAMEWORKS = ("trtllm", "vllm", "sglang", TORCH)
"""Whose kernels tables tell apart: serving libraries, or PyTorch alone, op by op. The dim
`framework` is a place here, from 1 on."""
FRAMEWORK = "framework"


K = TypeVar("K")
USUAL = {"op": "", "dtype": "fp32", "direction": "fwd", "timing": KERNEL}
"""The columns of texts, and what stands in where one is not given."""


class Kind(NamedTuple):
    """What is text in a row."""

    op: str
    dtype: str
    direction: str
    timing: str


@dataclass(frozen=True)
class Rows:
    """`n` rows: four text columns, and every dim that any of them has (NaN where a row has none).

    A dim `cold` of 1 says that the caches were flushed before the call, a dim `framework` whose
    kernels ran (a place in `FRAMEWORKS` from 1 on; 0 or NaN: not known).

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
        names = sorted({name for record in records for name in record} - {*USUAL, FRAMEWORK})
        dims = {
            name: np.array([record.get(name, np.nan) for record in records], np.float64)
            for name in names
        }
        if any(FRAMEWORK in record for record in records):
            named = [framework_code(record.get(FRAMEWORK)) for record in records]
            dims[FRAMEWORK] = np.array(named, np.float64)
        texts: dict[str, Any] = {
            name: tuple(each.get(name, usual) for each in records) for name, usual in USUAL.items()
        }
        return cls(**texts, dims=dims)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Rows:
        """From a frame in the measurement-table schema; columns that are no dims are ignored.

        Raises `ModelError` for a frame without ops and for a dim that is not a number.
        """
        texts: dict[str, Any] = {name: _texts(frame, name, usual) for name, usual in USUAL.items()}
        known = {name for each in set(texts["op"]) if each in OPS for name in _expected(each)[0]}
        dims = {name: _numbers(frame, name) for name in sorted(known.intersection(frame))}
        flags: dict[str, Any] = {}
        if "cache" in frame:  # flushed before the call, or the same call came before
            flags = {name: frame["cache"] == name for name in ("cold", "warm")}
        if FRAMEWORK in frame:
            codes = {name: framework_code(name) for name in frame[FRAMEWORK].unique()}
            dims[FRAMEWORK] = np.array([codes[name] for name in frame[FRAMEWORK]], np.float64)
        if "variant" in frame:  # dims without a column that it names, as `pinned` of copies
            named = (known - set(frame.columns)) & set(frame["variant"].dropna())
            flags |= {name: frame["variant"] == name for name in named}
        dims |= {name: each.to_numpy(np.float64) for name, each in flags.items()}
        return cls(**texts, dims=dims | _called_by_columns(frame))

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        names = sorted({name for part in parts for name in part.dims})
        texts: dict[str, Any] = {
            name: tuple(each for part in parts for each in getattr(part, name)) for name in USUAL
        }
        dims = {
            name: np.concatenate(
                [part.dims.get(name, np.full(len(part), np.nan)) for part in parts]
            )
            for name in names
        }
        return cls(**texts, dims=dims)

    def take(self, index: Ints) -> Rows:
        if self._are_all(index):
            return self
        places, dims = index.tolist(), {name: each[index] for name, each in self.dims.items()}
        texts: dict[str, Any] = {
            name: tuple(map(getattr(self, name).__getitem__, places)) for name in USUAL
        }
        return Rows(**texts, dims=dims)

    def in_framework(self) -> Floats:
        """Per row, the place of its framework in `FRAMEWORKS` from 1 on; 0 where not known."""
        known = self.dims.get(FRAMEWORK)
        return np.zeros(len(self)) if known is None else np.nan_to_num(known)

    def dims_text(self, row: int = 0) -> str:
        """The dims that are known of `row`: `k 512, m 8, n 64, framework torch`."""
        known = {name: each[row] for name, each in self.dims.items() if not np.isnan(each[row])}
        code = known.pop(FRAMEWORK, 0.0)
        texts = [f"{name} {value:g}" for name, value in known.items()]
        return ", ".join(texts + [f"{FRAMEWORK} {FRAMEWORKS[int(code) - 1]}"] * bool(code))

    @cached_property
    def kinds(self) -> tuple[tuple[Kind, ...], Ints]:
        """(the distinct kinds, in order of first sight; each row's place among them)."""
        columns = self.op, self.dtype, self.direction, self.timing
        if all(len(set(each)) == 1 for each in columns):
            return (Kind(*(each[0] for each in columns)),), np.zeros(len(self), np.int64)
        places: dict[tuple[str, ...], int] = {}
        place = [places.setdefault(each, len(places)) for each in zip(*columns, strict=True)]
        return tuple(Kind(*each) for each in places), np.array(place, np.int64)

    def of_kinds(self, value: Callable[[Kind], Any], dtype: Any = np.float64) -> NDArray[Any]:
        """`value` of each row's kind `[n]`, or `[n, m]` of `m` values."""
        kinds, place = self.kinds
        return np.array([value(kind) for kind in kinds], dtype)[place]

    def grouped(self, key: Callable[[Kind], K]) -> Iterator[tuple[K, Ints]]:
        """(key, its rows) for every `key` of kinds that occur, in order of first sight."""
        kinds, place = self.kinds
        places: dict[K, int] = {}
        groups = [places.setdefault(key(kind), len(places)) for kind in kinds]
        if len(places) <= 1:
            yield from ((each, self._all) for each in places)
            return
        group = np.array(groups, np.int64)[place]
        ends = np.cumsum(np.bincount(group, minlength=len(places)))
        order = np.argsort(group, kind="stable")
        yield from zip(places, np.split(order, ends[:-1]), strict=False)

    def groups(self) -> Iterator[tuple[str, Ints]]:
        """(op, its rows) for every op that occurs, in order of first sight."""
        return self.grouped(lambda kind: kind.op)

    def dims_of(self, op: str, index: Ints) -> Dims:
        """Checked dims of the rows `index`, all of `op`, defaults filled in.

        Raises `ModelError` that names the op, the row and the dim for a dim that is missing, below
        1 or above `MOST`.
        """
        are_all = self._are_all(index)
        if are_all and op in self.known:
            return dict(self.known[op])
        names, usual, least = _expected(op)
        nothing = np.full(len(index), np.nan)
        values = np.array(
            [self.dims[name][index] if name in self.dims else nothing for name in names]
        )
        values = np.where(np.isnan(values), usual, values)
        is_good = (values >= least) & (values <= MOST) & ((values == 0) | (values >= MIN_MEAN))
        if not is_good.all():
            dim, row = np.argwhere(~is_good)[0]
            value = values[dim, row]
            what = "is missing" if np.isnan(value) else f"is {value:g}"
            limit = f"at most {MOST:g}" if value > MOST else f"at least {least[dim, 0]:g}"
            limit = f"0 or at least {MIN_MEAN:g}" if 0 < value < MIN_MEAN else limit
            raise ModelError(f"{op} (row {index[row]}): {names[dim]} {what}; expected {limit}")
        dims = dict(zip(names, values, strict=True))
        for group in OPS[op].one_of:
            given = np.maximum.reduce([dims[name] for name in group]) > 0
            if not given.all():
                row = index[np.flatnonzero(~given)[0]]
                raise ModelError(f"{op} (row {row}): {group[0]} is missing; expected at least 1")
        for rule in OPS[op].holds:
            for row in index[np.flatnonzero(formula(rule)(dims) == 0.0)[:1]]:
                raise ModelError(f"{op} (row {row}): expected {rule}")
        if are_all:
            self.known[op] = dict(dims)
        return dims

    @cached_property
    def _all(self) -> Ints:
        return np.arange(len(self))

    def _are_all(self, index: Ints) -> bool:
        """Whether `index` are all rows, in their order."""
        return index is self._all or (len(index) == len(self) and bool((index == self._all).all()))

    @cached_property
    def known(self) -> dict[str, Any]:
        """What was worked out of all rows, by its name, or dims by the one op that there is: of few
        rows, most of the work."""
        return {}

    @cached_property
    def content(self) -> tuple[Hashable, ...]:
        """What tells these rows from others."""
        names = sorted(self.dims)
        values = np.array([self.dims[name] for name in names]).reshape(len(names), len(self))
        is_known = (values == values).any(axis=1).tolist()
        dims = tuple(
            (name, each.tobytes())
            for name, each, known in zip(names, values, is_known, strict=True)
            if known
        )
        return self.op, self.dtype, self.direction, self.timing, dims

    @cached_property
    def item_bytes(self) -> Floats:
        """Bytes per element of each row; `ModelError` for an unknown dtype."""
        return self.of_kinds(lambda kind: item_bytes(kind.dtype))


@cache
def _expected(op: str) -> tuple[tuple[str, ...], Floats, Floats]:
    """(its dims; their defaults, NaN where there is none; the least that they may be), `[n, 1]`."""
    spec = OPS[op]
    names = (*spec.dims, *spec.defaults)
    usual = np.array([spec.defaults.get(name, np.nan) for name in names])
    usual_least = dict.fromkeys(spec.means, MIN_MEAN) | dict.fromkeys(spec.defaults, 0.0)
    least = np.array([usual_least.get(name, 1.0) for name in names])
    return names, usual[:, None], least[:, None]


def _texts(frame: pd.DataFrame, column: str, usual: str) -> tuple[str, ...]:
    """The texts of a column, `usual` where there are none."""
    if column not in frame:
        return (usual,) * len(frame)
    values = frame[column].tolist()
    if set(map(type, values)) == {str}:
        return tuple(values)
    is_none = frame[column].isna().tolist()
    return tuple(usual if gone else str(t) for t, gone in zip(values, is_none, strict=True))


def _numbers(frame: pd.DataFrame, column: str) -> Floats:
    values = frame[column]
    if values.dtype == object:  # tables joined: numbers and what pandas has for none
        values = values.where(values.notna(), np.nan)
    try:
        return np.asarray(values.to_numpy(np.float64))
    except (ValueError, TypeError) as error:
        raise ModelError(f"column {column}: {error}") from None


FIRST_TURNED, SECOND_TURNED = "first_turned", "second_turned"


def _called_by_columns(frame: pd.DataFrame) -> dict[str, Floats]:
    """Of a frame with BLAS's `transpose_a` and `transpose_b` (N or T): such calls take matrices by
    columns, so each is a product of ours with operands, m and n exchanged. With `first_turned` and
    `second_turned`: 1 where ours is read transposed, as a layer's weights are; NaN for others."""
    if not {"transpose_a", "transpose_b", "m", "n"} <= set(frame):
        return {}
    turned = {
        name: frame[column].map({"T": 1.0, "N": 0.0}).to_numpy(np.float64)
        for name, column in ((FIRST_TURNED, "transpose_b"), (SECOND_TURNED, "transpose_a"))
    }
    by_columns = np.isfinite(turned[FIRST_TURNED])
    m, n = _numbers(frame, "m"), _numbers(frame, "n")
    return {"m": np.where(by_columns, n, m), "n": np.where(by_columns, m, n)} | turned


def framework_code(name: object) -> int:
    """The place of `name` in `FRAMEWORKS` from 1 on, or `name` where it is one; 0 for others."""
    if isinstance(name, float):
        return int(name) if name in range(1, len(FRAMEWORKS) + 1) else 0
    return FRAMEWORKS.index(name) + 1 if name in FRAMEWORKS else 0
