"""Which figures of a machine a computation reads: what does not read a figure is not done again.

A result holds for every machine that agrees on the figures read, since nothing else was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any, Protocol, Self, TypeVar, cast

from perfmodel.hardware.parts import KINDS, Cluster, Device, Part, kind_of
from perfmodel.hardware.schema import fields_of
from perfmodel.units import unit_of

ASSUMED, RECALLED, SOURCED = "assumed", "recalled", "sourced"
NAMING_FIELDS = ("name", "maker", "sources", "aliases")
"""What names a part; no duration depends on it."""


@cache
def figures_of(kind: str) -> frozenset[str]:
    """The keys of a kind of part that durations may depend on; parts within it have their own."""
    return frozenset(
        name
        for name, entry in fields_of(KINDS[kind]).items()
        if name not in NAMING_FIELDS and not entry.is_part
    )


@dataclass(frozen=True)
class FigureRead:
    """A figure of a part that a computation looked at."""

    part: str
    figure: str
    """`device.hbm_gb_per_s`."""
    value: float | str | None
    unit: str
    """`GB/s`, …; empty for texts."""
    source: str

    @property
    def grounds(self) -> str:
        """`assumed`, `recalled` (from a data sheet that was not at hand), else `sourced`."""
        if self.source.startswith(_ASSUMED):
            return ASSUMED
        return RECALLED if RECALLED in self.source else SOURCED

    def to_dict(self) -> dict[str, float | str | None]:
        keys = ("part", "figure", "value", "unit", "grounds", "source")
        return {key: getattr(self, key) for key in keys}


class PartBound(Hashable, Protocol):
    """What an answer is of: a device (`device`) or a machine (`machine`), and whatever else."""

    def on(self, part: Any) -> Self:
        """The same of another one."""
        ...


@dataclass(frozen=True)
class OfDevice:
    """What is asked about a device, told from other questions by `content`."""

    content: tuple[Hashable, ...]
    device: Device
    by: Any = field(default=None, compare=False)
    """What answers; it lives as long as the answer is known, so `content` may name its `id`."""

    def on(self, part: Device) -> OfDevice:
        """The same of another device."""
        return OfDevice(self.content, part, self.by)


K = TypeVar("K", bound=PartBound)
P = TypeVar("P", bound=Part)
T = TypeVar("T")
_ASSUMED = (ASSUMED, "not stated")


def figure_reads(machine: Cluster, log: Iterable[str]) -> tuple[FigureRead, ...]:
    """The figures whose keys are in `log`, in order of their keys, with their sources.

    Figures that a part does not have are left out, and so is what fitted models were given of it.
    """
    wanted = set(log)
    return tuple(sorted(_reads(machine, "cluster", wanted), key=lambda each: each.figure))


def figure_read(part: Part, kind: str, name: str) -> FigureRead:
    entry, value = fields_of(KINDS[kind])[name], getattr(unrecorded(part), name)
    unit = (unit_of(name) or "count") if entry.is_figure else ""
    source = part.sources.get(name, "not stated" if entry.has_source else "its name")
    shown = value if entry.is_figure else str(value)
    return FigureRead(part.name, f"{kind}.{name}", shown, unit, source)


def _reads(part: Part, kind: str, wanted: set[str]) -> Iterable[FigureRead]:
    for name, entry in fields_of(KINDS[kind]).items():
        value = getattr(unrecorded(part), name)
        if isinstance(value, Part):
            yield from _reads(value, kind_of(value), wanted)
        elif value is not None and f"{kind}.{name}" in wanted and not entry.is_table:
            yield figure_read(part, kind, name)


def cached_per_device(make: Callable[[K], T], maxsize: int) -> Callable[[K], T]:
    """`make`, asked once for all keys whose devices are equal, recorded or not.

    What it read of the device the first time is noted whenever its answer is used.
    """
    return _cached_per_part("device", make, maxsize)


def cached_per_machine(make: Callable[[K], T], maxsize: int) -> Callable[[K], T]:
    """The same by keys' machines."""
    return _cached_per_part("machine", make, maxsize)


def _cached_per_part(name: str, make: Callable[[K], T], maxsize: int) -> Callable[[K], T]:
    @lru_cache(maxsize=maxsize)
    def known(key: K) -> tuple[T, frozenset[str]]:
        log: set[str] = set()
        part = getattr(key, name)
        return make(key.on(_recorded(part, kind_of(part), log))), frozenset(log)

    def asked(key: K) -> T:
        part = getattr(key, name)
        logs = _logs(part)
        result, read = known(key.on(unrecorded(part)) if logs else key)
        for log in logs:
            log |= read
        return result

    return asked


def with_read_log(machine: Cluster) -> tuple[Cluster, set[str]]:
    """`machine`, and the set that fills with what is read of it and of its parts.

    One that is recorded already is recorded by both.
    """
    log: set[str] = set()
    return cast("Cluster", _recorded(machine, "cluster", log)), log


def unrecorded(part: P) -> P:
    """`part` without the record of what is read of it."""
    plain: P | None = getattr(part, _PLAIN, None)
    return part if plain is None else plain


def is_recorded(part: Part) -> bool:
    """Whether what is read of `part` is noted."""
    return bool(_logs(part))


class _Noted:
    """A figure that is noted when it is first read, and found in the part itself from then on."""

    def __init__(self, kind: str, name: str) -> None:
        self.key, self.name = f"{kind}.{name}", name

    def __get__(self, part: Part, _: type[Part]) -> Any:
        for log in _logs(part):
            log.add(self.key)
        value = vars(part)[self.name] = getattr(unrecorded(part), self.name)
        return value


@cache
def _recording(kind: str) -> type[Part]:
    """A part of `kind` that notes which of its figures are read.

    Two of them are equal only if they are the same: caches by device would hide what is read.
    """
    cls = KINDS[kind]

    def same(self: Part, other: object) -> bool:
        return self is other

    body: dict[str, Any] = {
        **{name: _Noted(kind, name) for name in figures_of(kind)},
        "__module__": cls.__module__,
        "__eq__": same,
        "__hash__": object.__hash__,
    }
    return type(cls.__name__, (cls,), body)


_LOGS, _PLAIN = "logs", "plain"


def _recorded(part: Part, kind: str, log: set[str]) -> Part:
    result, plain = object.__new__(_recording(kind)), unrecorded(part)
    for each in fields(part):
        value = getattr(plain, each.name)
        if isinstance(value, Part):
            value = _recorded(getattr(part, each.name), kind_of(value), log)
        if each.name not in figures_of(kind):
            object.__setattr__(result, each.name, value)
    vars(result).update({_LOGS: (*_logs(part), log), _PLAIN: plain})
    return result


def _logs(part: Part) -> tuple[set[str], ...]:
    """Those that note what is read of `part`; none of a part that is not recorded."""
    logs: tuple[set[str], ...] = getattr(part, _LOGS, ())
    return logs


def figure_values(part: Part, kind: str = "cluster") -> dict[str, Any]:
    """Every figure of a part and of those in it, by key; of nodes of several kinds the first's."""
    result: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, Part):
            result = figure_values(value, kind_of(value)) | result
        elif each.name in figures_of(kind):
            result[f"{kind}.{each.name}"] = value
    return result
