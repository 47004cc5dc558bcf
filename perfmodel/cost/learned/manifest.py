"""The manifest of a model directory as plain data: types and ranges of all that is in it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from perfmodel.cost.contract import KERNELS
from perfmodel.cost.learned.devices import COLUMNS
from perfmodel.cost.learned.features import BUILDS, NOT_BELOW
from perfmodel.cost.learned.forest import MAX_LOG
from perfmodel.ops.rows import FRAMEWORKS

SPREAD = ("seen", "beyond", "unseen", "physics", "domain")
"""The pairs of a `Spread`."""

_Log = Annotated[float, msgspec.Meta(ge=-MAX_LOG, le=MAX_LOG)]
_Frac = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Ratio = Annotated[float, msgspec.Meta(ge=1e-3, le=1e3)]
_Us = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Above0 = Annotated[float, msgspec.Meta(gt=0.0, le=1e30)]
_Figures = dict[str, Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]]
_Slope = Annotated[float, msgspec.Meta(ge=0.01, le=100.0)]
_Place = Annotated[int, msgspec.Meta(ge=0)]


class _Spread(msgspec.Struct):
    seen: tuple[_Log, _Log]
    beyond: tuple[_Log, _Log]
    unseen: tuple[_Log, _Log]
    physics: tuple[_Log, _Log]
    domain: tuple[float, float]
    centre: _Log
    least_us: _Above0

    def __post_init__(self) -> None:
        if any(low > high for low, high in (getattr(self, kind) for kind in SPREAD)):
            raise ValueError("a range ends before it begins")


class _Extension(msgspec.Struct):
    trust: _Frac
    known: Annotated[list[tuple[_Place, _Above0, _Slope]], msgspec.Meta(min_length=1)]


class _Gains(msgspec.Struct):
    figure: str
    slopes: dict[str, dict[int, _Log]]


class _File(msgspec.Struct):
    """Trees, and nothing else: what is in it is never executed."""

    file: str
    sha256: str


class _Separate(msgspec.Struct):
    file: str
    sha256: str
    framework: Annotated[int, msgspec.Meta(ge=1, le=len(FRAMEWORKS))]
    kinds: frozenset[tuple[str, str]]
    places: Annotated[tuple[_Place, ...], msgspec.Meta(min_length=1)]


class StoredPart(msgspec.Struct):
    """A `Part` as the manifest has it: plain data, with devices by their places."""

    name: str
    build: str
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    figures: tuple[str, ...]
    trees: dict[str, str | _Log]
    own: dict[_Place, _File]
    separate: list[_Separate]
    share: _Frac
    as_nearest: bool
    devices: tuple[_Figures, ...]
    spreads: dict[str, _Spread]
    tiles: dict[str, Annotated[list[tuple[_Above0, _Above0, _Above0]], msgspec.Meta(min_length=1)]]
    measured: list[tuple[str, str, tuple[_Place, ...]]]
    extensions: dict[str, _Extension]
    gains: _Gains
    least: list[tuple[str, str, _Place, _Figures]]

    def __post_init__(self) -> None:
        grown = [place for each in self.extensions.values() for place, *_ in each.known]
        known = [place for *_, places in self.measured for place in places]
        others = [place for *_, place, _ in self.least]
        others += [place for each in self.separate for place in each.places]
        if any(place >= len(self.devices) for place in (*grown, *known, *others, *self.own)):
            raise ValueError("a place among the devices that there are not")
        if any(set(COLUMNS) - set(device) for device in self.devices):
            raise ValueError("a device without all of its figures")
        if any(set(least) != set(NOT_BELOW.get(self.build, ())) for *_, least in self.least):
            raise ValueError("least values of other figures than those of its build")
        if self.build not in BUILDS:
            raise ValueError(f"build {self.build!r} is none of {', '.join(BUILDS)}")
        if self.gains.slopes and self.gains.figure not in self.figures:
            raise ValueError(f"gains by {self.gains.figure!r}, which is none of the figures")
        if "*" not in self.spreads:
            raise ValueError("spreads of other ops, `*`, are missing")
        if any(key.count("/") != 3 for key in self.tiles):
            raise ValueError("tiles under a key that is not op/dtype/target/capability")


class StoredFloor(msgspec.Struct):
    """A `KnownFloor`."""

    device: _Figures
    floor_us: _Us
    offset_us: _Us
    is_measured: bool
    scatter: tuple[_Ratio, _Ratio]

    def __post_init__(self) -> None:
        if set(COLUMNS) - set(self.device):
            raise ValueError("a device without all of its figures")


class StoredFamily(msgspec.Struct):
    """A `Learned` model."""

    parts: list[StoredPart]
    floors: dict[str, list[StoredFloor]]


class Manifest(msgspec.Struct):
    """All families of a directory, and what they were fitted to."""

    about: dict[str, Any]
    families: dict[str, StoredFamily]

    def __post_init__(self) -> None:
        if unknown := [each for each in self.families if f"gpu/{each}/heuristic" not in KERNELS]:
            raise ValueError(f"unknown family {unknown[0]!r}")
