"""Fitted and assumed figures of physics, as data: value, unit, meaning and source of each.

A file per package below `cost`, a table `[MODULE.NAME]` per coefficient. `docs/coefficients.md`
lists all; tests refuse one without unit or source, and one that no module reads. `reading` logs
which of them a computation reads; outside of it a coefficient is a plain attribute.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

ASSUMED = "assumed"
K = TypeVar("K")
T = TypeVar("T")


class Group:
    """The coefficients of one module: a single figure is an attribute, others go by method."""

    def __init__(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.entries, self._keys = tables, {key: f"{name}.{key}" for key in tables}
        vars(self).update({key: _converted(entry["value"]) for key, entry in tables.items()})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    def table(self, name: str) -> dict[str, float]:
        """A figure by op, direction, generation or target."""
        entries: dict[str, float] = getattr(self, name)
        return entries

    def tuples(self, name: str) -> dict[str, tuple[float, ...]]:
        """Several figures by the same; the unit names them in order."""
        entries: dict[str, tuple[float, ...]] = getattr(self, name)
        return entries

    def rows(self, name: str) -> tuple[tuple[float, ...], ...]:
        """A list of figures that belong together."""
        entries: tuple[tuple[float, ...], ...] = getattr(self, name)
        return entries


class _LoggedGroup(Group):
    """What a group is while someone logs reads."""

    def __getattribute__(self, name: str) -> Any:
        known = object.__getattribute__
        if (key := known(self, "_keys").get(name)) is not None:
            for log in _LOGS.get():
                log.add(key)
        return known(self, name)


_LOGS: ContextVar[tuple[set[str], ...]] = ContextVar("logs", default=())
_GROUPS: dict[str, Group] = {}
_LOCK, _READERS = Lock(), [0]


def coefficients(name: str) -> Group:
    """Those of a module, by `PACKAGE.MODULE`: `gpu.streaming`."""
    with _LOCK:
        if name not in _GROUPS:
            _GROUPS[name] = Group(name, _tables(name))
            _GROUPS[name].__class__ = _LoggedGroup if _READERS[0] else Group
        return _GROUPS[name]


@contextmanager
def reading() -> Iterator[set[str]]:
    """The set that fills with the names of the coefficients that are read within, by this thread:
    `gpu.matmul.split_us`."""
    log: set[str] = set()
    token = _LOGS.set((*_LOGS.get(), log))
    _count_readers(1)
    try:
        yield log
    finally:
        _count_readers(-1)
        _LOGS.reset(token)


def is_reading() -> bool:
    """Whether anyone logs what this thread reads."""
    return bool(_LOGS.get())


def _count_readers(more: int) -> None:
    with _LOCK:
        _READERS[0] += more
        kind = _LoggedGroup if _READERS[0] else Group
        if _READERS[0] == max(more, 0):
            for group in _GROUPS.values():
                group.__class__ = kind


def cached_with_reads(
    cached: Callable[[Callable[[K], tuple[T, frozenset[str]]]], Callable[[K], Any]],
    make: Callable[[K], T],
) -> Callable[[K], T]:
    """`make` behind a cache; what it read the first time is logged whenever its answer is used."""

    def made(key: K) -> tuple[T, frozenset[str]]:
        with reading() as log:
            entry = make(key)
        return entry, frozenset(log)

    known = cached(made)

    def asked(key: K) -> T:
        entry: T
        entry, read = known(key)
        for log in _LOGS.get():
            log |= read
        return entry

    return asked


@dataclass(frozen=True)
class CoefficientRead:
    """A coefficient that a computation read."""

    name: str
    """`gpu.matmul.split_us`."""
    value: Any
    """A number, a table or a list of such."""
    unit: str
    meaning: str
    grounds: str
    """`assumed`, else `sourced`."""
    source: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def coefficient_reads(log: Iterable[str]) -> tuple[CoefficientRead, ...]:
    """The coefficients whose names are in `log`, in order of their names, with their sources."""
    return tuple(_read(name) for name in sorted(log))


def _read(name: str) -> CoefficientRead:
    group, _, key = name.rpartition(".")
    entry = _tables(group)[key]
    source = entry["source"]
    grounds = ASSUMED if source.startswith(ASSUMED) else "sourced"
    return CoefficientRead(
        name, entry["value"], entry["unit"], entry.get("meaning", ""), grounds, source
    )


def _converted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _converted(each) for key, each in value.items()}
    return tuple(map(_converted, value)) if isinstance(value, list) else float(value)


def _tables(name: str) -> dict[str, dict[str, Any]]:
    package, _, module = name.partition(".")
    tables: dict[str, dict[str, Any]] = document(package)[module]
    return tables


@cache
def document(package: str) -> dict[str, dict[str, dict[str, Any]]]:
    """All coefficients of a package, by module and name."""
    text = Path(__file__).with_name(f"{package}.toml").read_text("utf-8")
    return tomllib.loads(text)
