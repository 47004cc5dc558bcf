"""One fitted ensemble of a family: trees on log(kernel / physics), floors of hosts, intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple, Protocol

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ints, clipped, median
from perfmodel.cost.gpu.heuristic import TIMINGS, Heuristic, floors_of
from perfmodel.cost.learned.devices import (
    COLUMNS,
    SAME,
    Description,
    describe,
    distance,
    interval_blend,
    same_maker,
    similarity,
    transferred_log_factors,
)
from perfmodel.cost.learned.features import BUILDS, NOT_BELOW, Columns
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

MAX_LOG = 50.0
"""Above the logarithm of every factor that kernels can be off by."""
SINGLE_CALL = "event_single_call"
_OFFSET_FRAC = 0.5
"""Of the floor of a single call, what a long kernel shows as well: the host's launch."""
_SHARED_FRAC = 0.5
"""Of the trees that all devices share in answers for a device with trees of its own."""
_FADES_OVER = np.log(4.0)
"""Logarithm below the measured range over which what was learned gives way to physics."""
_SAME_KIND = {"bf16": "fp16", "tf32": "fp16"}
SHORT, LONG, NAMED, BEYOND = "short", "long", "named", "beyond"
"""Where an interval holds: up to twice the floor of the host, above, above where it is known whose
kernels ran, beyond the largest row."""
ANY_OP, OTHERS = "*", ""
_USUAL_INTERVAL = (-1.0, 1.0)

_Log = Annotated[float, msgspec.Meta(ge=-MAX_LOG, le=MAX_LOG)]
_Frac = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Us = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Above0 = Annotated[float, msgspec.Meta(gt=0.0, le=1e30)]
_Features = dict[str, Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]]
_Tile = tuple[_Above0, _Above0, _Above0]


class File(msgspec.Struct, frozen=True):
    """A file of trees, or of a user's regressor: then with its class and the range of targets."""

    file: str
    sha256: str
    regressor: str = ""
    low: _Log = 0.0
    high: _Log = 0.0


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit found but for the trees, as the manifest has it. Keys are joined by `/`."""

    name: str
    build: str
    """Which function of `BUILDS` makes the features."""
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    """Those that it answers for; none: all of its family."""
    features: tuple[str, ...]
    devices: dict[str, _Features]
    share: _Frac = 1.0
    """Of the trees in answers for devices that were not measured; the rest is physics'."""
    as_nearest: bool = False
    """Whether the trees are asked about those as the most similar measured device."""
    measured: dict[str, _Features] = {}
    """`device/op/kind of dtype`: least `base_us` and features of `NOT_BELOW`, largest `work`."""
    floors: dict[str, _Us] = {}
    """`device/timing/op/dtype` to where short calls of its host pile up."""
    intervals: dict[str, tuple[_Log, _Log]] = {}
    """`op/device/where` to 90 % of log(measured / predicted): of any op, of devices left out."""
    tiles: dict[str, Annotated[list[_Tile], msgspec.Meta(min_length=1)]] = {}
    files: dict[str, File] = {}
    """Of the trees that all devices share, and by device of those with their own."""

    def __post_init__(self) -> None:
        if self.build not in BUILDS:
            raise ValueError(f"build {self.build!r} is none of {', '.join(BUILDS)}")
        if any(set(COLUMNS) - set(device) for device in self.devices.values()):
            raise ValueError("a device without all of its features")
        names = [key.split("/")[0] for key in (*self.measured, *self.floors)]
        if set(names) - set(self.devices) or set(self.files) - set(self.devices) - {OTHERS}:
            raise ValueError("a device that is not described")
        least = {"base_us", "work", *NOT_BELOW.get(self.build, ())}
        if any(set(each) != least for each in self.measured.values()):
            raise ValueError("a measured range of other features than those of its build")
        lengths = (self.measured, 3), (self.floors, 4), (self.intervals, 3), (self.tiles, 4)
        if any(key.count("/") != count - 1 for table, count in lengths for key in table):
            raise ValueError("a key of the wrong length")
        if any(low > high for low, high in self.intervals.values()):
            raise ValueError("an interval that ends before it begins")


class Ensemble(Protocol):
    """A fitted regressor."""

    def predict(self, matrix: np.ndarray) -> Floats:
        """One answer per row of `matrix`."""
        ...


class Cell(NamedTuple):
    """Rows `at` of one op, dtype and timing, and the most similar device that tells of them."""

    op: str
    dtype: str
    timing: str
    at: Ints
    near: str
    away: float
    """Its distance; infinite where none of the maker was measured."""

    @property
    def key(self) -> str:
        """Under which the measured range is kept."""
        return f"{self.near}/{self.op}/{kind_of(self.dtype)}"


class Kernels(NamedTuple):
    """Kernel times `[n]` without a floor, and what they rest on."""

    us: Floats
    columns: Columns
    cells: list[Cell]
    support: Floats
    """How far each row lies within what was measured, 0 to 1; physics answers for the rest."""


def kind_of(dtype: str) -> str:
    """The dtype for which the same kernels are written."""
    return _SAME_KIND.get(dtype, dtype)


def place_of(us: Floats, floor_us: Floats, framework: Floats) -> np.ndarray:
    """`[n]`: where the interval of each time lies, within what was measured."""
    long = np.where(framework > 0.0, NAMED, LONG)
    return np.where(us < 2.0 * floor_us, SHORT, long).astype(object)


@dataclass(frozen=True)
class Part:
    """Trees over the features of rows and of their device, for some dtypes.

    Of a device that was not measured the answer is a geometric mean of the trees' and of physics:
    all of the trees for boards of a measured chip, physics alone where none of its maker was
    measured. Outside of what was measured physics answers.
    """

    fitted: Fitted
    trees: Mapping[str, Ensemble]
    heuristic: Heuristic

    def answers_for(self, op: str, dtype: str) -> bool:
        """Whether rows of `op` in `dtype` are the part's."""
        own = self.fitted
        is_known = dtype in own.dtypes or (own.build == "matmul" and kind_of(dtype) in own.dtypes)
        return is_known and (op in own.ops or not own.ops)

    @cached_property
    def _measured_on(self) -> dict[tuple[str, str], list[str]]:
        """By op and kind of dtype, the devices; by `*` those of any op."""
        known: dict[tuple[str, str], list[str]] = {}
        for key in self.fitted.measured:
            name, op, kind = key.split("/")
            known.setdefault((op, kind), []).append(name)
            known.setdefault((ANY_OP, kind), []).append(name)
        return known

    def nearest(self, op: str, dtype: str, own: Description) -> tuple[str, float]:
        """The most similar device of the maker with measurements of rows like these, and its
        distance; an op that was measured nowhere is taken for those that were, in its dtype."""
        known, kind = self._measured_on, kind_of(dtype)
        is_new = all(each != op for each, _ in known)
        described = [
            (name, self.fitted.devices[name])
            for name in known.get((ANY_OP if is_new else op, kind), ())
        ]
        alike = [(distance(each, own), name) for name, each in described if same_maker(each, own)]
        away, name = min(alike, default=(np.inf, OTHERS))
        return name, away

    def cells(self, rows: Rows, own: Description) -> list[Cell]:
        """`rows` by op, dtype and timing."""
        kinds = rows.grouped(lambda kind: (kind.op, kind.dtype, kind.timing))
        return [Cell(*kind, at, *self.nearest(*kind[:2], own)) for kind, at in kinds]

    def kernels(
        self, rows: Rows, device: Device, cells: list[Cell], columns: Columns | None = None
    ) -> Kernels:
        """Times of `rows` without a floor; `columns` where they are known already."""
        columns = columns or BUILDS[self.fitted.build](rows, device, self.fitted.tiles)
        support, share = np.zeros((2, len(rows)))
        own = describe(device)
        for cell in cells:
            support[cell.at] = self._support(cell, columns)
            share[cell.at] = 1.0 - (1.0 - self.fitted.share) * (1.0 - similarity(cell.away))
        factors = share * self._learned(columns, cells, own) + (1.0 - share) * columns.power_log
        outside = np.flatnonzero(support < 1.0)
        if len(outside):
            physics_us = self.heuristic.analyse(rows.take(outside), device).kernel_us
            busy_us = np.maximum(physics_us - columns.extra_us[outside], 1e-6)
            off = np.log(busy_us / columns.base_us[outside])
            factors[outside] += (1.0 - support[outside]) * (off - factors[outside])
        us = columns.base_us * np.exp(factors) + columns.extra_us
        least_us = np.maximum(columns.bound_us, device.kernel_floor_us)
        return Kernels(np.maximum(us, least_us), columns, cells, support)

    def _learned(self, columns: Columns, cells: list[Cell], own: Description) -> Floats:
        """Log factors `[n]` of the trees; 0 where no device of the maker was measured."""
        factors, width = np.zeros(len(columns.base_us)), len(self.fitted.features)
        cells = [cell for cell in cells if cell.near]
        if not cells:
            return factors
        matrix, asked_as = columns.matrix((*self.fitted.features, *COLUMNS), own), []
        for cell in cells:
            is_near = self.fitted.as_nearest or similarity(cell.away) > 0.0
            asked_as.append(self.fitted.devices[cell.near] if is_near else own)
            matrix[cell.at, width:] = [asked_as[-1][name] for name in COLUMNS]
        asked = np.concatenate([cell.at for cell in cells])
        factors[asked] = self.trees[OTHERS].predict(matrix[asked])
        for name in {cell.near for cell in cells} & set(self.trees):
            near = [cell for cell in cells if cell.near == name and similarity(cell.away) > 0.0]
            if near:
                at = np.concatenate([cell.at for cell in near])
                alone = self.trees[name].predict(matrix[at, :width])
                weight = (1.0 - _SHARED_FRAC) * similarity(near[0].away)
                factors[at] += weight * (alone - factors[at])
        on_chip_frac = np.broadcast_to(columns.on_chip_frac, len(factors))
        for cell, like in zip(cells, asked_as, strict=True):
            if cell.away >= SAME:
                at = cell.at
                factors[at] = transferred_log_factors(factors[at], on_chip_frac[at], like, own)
        return factors

    def _range(self, cell: Cell) -> Mapping[str, float]:
        """What was measured on the nearest device; of others for an op measured nowhere."""
        known = self.fitted.measured
        if cell.key in known:
            return known[cell.key]
        kind = f"/{kind_of(cell.dtype)}"
        others = [
            each
            for key, each in known.items()
            if key.startswith(f"{cell.near}/") and key.endswith(kind)
        ]
        largest = max(each["work"] for each in others)
        return {name: min(each[name] for each in others) for name in others[0]} | {"work": largest}

    def _support(self, cell: Cell, columns: Columns) -> Floats:
        if not cell.near:
            return np.zeros(len(cell.at))
        least = self._range(cell)
        base_us = np.maximum(columns.base_us[cell.at], np.finfo(float).tiny)
        below = np.log(least["base_us"] / base_us)
        for name in NOT_BELOW.get(self.fitted.build, ()):
            below = np.maximum(below, least[name] - columns.features[name][cell.at])
        return clipped(1.0 - below / _FADES_OVER, 0.0, 1.0)

    def is_inside(self, cell: Cell, columns: Columns) -> Floats:
        """`[n]`: 1 for rows of the cell that have no more work than measured ones, else 0."""
        most = self._range(cell)["work"] if cell.near else 0.0
        return (columns.work[cell.at] <= most).astype(np.float64)

    @cached_property
    def _floors(self) -> dict[tuple[str, str, str], dict[str, float]]:
        found: dict[tuple[str, str, str], dict[str, float]] = {}
        for key, us in self.fitted.floors.items():
            name, timing, op, dtype = key.split("/")
            found.setdefault((timing, op, dtype), {})[name] = us
        return found

    def floors(self, rows: Rows, cells: list[Cell], own: Description) -> Floats:
        """(floor, offset) `[2, n]` microseconds: of the device's own host, else the median of its
        maker's, else of all, else the usual ones."""
        floors, devices = floors_of(rows), self.fitted.devices
        for cell in cells:
            known = self._floors.get((cell.timing, cell.op, cell.dtype), {})
            if known:
                away = {name: distance(devices[name], own) for name in known}
                host = [us for name, us in known.items() if away[name] < SAME]
                maker = [us for name, us in known.items() if same_maker(devices[name], own)]
                floor_us = median(np.array(host or maker or [*known.values()]))
                usual = TIMINGS[cell.timing].offset_us
                offset_us = _OFFSET_FRAC * floor_us if cell.timing == SINGLE_CALL else usual
                floors[:, cell.at] = [[floor_us], [min(offset_us, 0.9 * floor_us)]]
        return floors

    def intervals(
        self, rows: Rows, found: Kernels, us: Floats, floor_us: Floats, changed: float = 0.0
    ) -> Floats:
        """Logarithms (low, high) `[2, n]` of 90 % intervals around `us`, on a device that was
        `changed` by so much. Where physics answers they are at least as wide as its own."""
        framework = rows.in_framework()
        ends, spread = np.zeros((2, len(us))), np.log(self.heuristic.spread)
        for cell in found.cells:
            at = cell.at
            where = place_of(us[at], floor_us[at], framework[at])
            blend = max(interval_blend(cell.away), interval_blend(changed))
            for name, weight in ((OTHERS, blend), (cell.near, 1.0 - blend)):
                if weight > 0.0:
                    inside = self.is_inside(cell, found.columns) > 0.0
                    place = where if name == OTHERS else np.where(inside, where, BEYOND)
                    known = {each: self._interval(cell.op, name, each) for each in set(place)}
                    ends[:, at] += weight * np.array([known[each] for each in place]).T
        physics = np.minimum(ends[0], -spread), np.maximum(ends[1], spread)
        ends += (1.0 - found.support) * (np.array(physics) - ends)
        return ends

    def _interval(self, op: str, name: str, where: str) -> tuple[float, float]:
        """That of the op on the device, else of what comes nearest to it."""
        for key in (f"{each}/{name}/{at}" for each in (op, ANY_OP) for at in (where, LONG)):
            if (found := self.fitted.intervals.get(key)) is not None:
                return found
        return self._interval(op, OTHERS, where) if name != OTHERS else _USUAL_INTERVAL

    def without(self, names: set[str], trees: Ensemble) -> Part:
        """The part as if the devices `names` had not been measured."""

        def kept(table: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
            return {key: each for key, each in table.items() if key.split("/")[0] not in names}

        own = self.fitted
        left = msgspec.structs.replace(own, measured=kept(own.measured), floors=kept(own.floors))
        return replace(self, fitted=left, trees={OTHERS: trees})
