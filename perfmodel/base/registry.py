"""The one registry: pluggable things register by decorator or by an installed entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Generic, TypeVar

from perfmodel.errors import PerfmodelError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
_MAX_OFFERED = 8
IN_USE: list[str] = []
"""The plug-ins that this process has loaded, as a user knows them."""


def offered(name: str, known: Sequence[str], listed_by: str = "", cutoff: float = 0.4) -> str:
    """An unknown name and what it may have meant: the nearest, all of a few, or how many there
    are and the command that lists them."""
    near = get_close_matches(name[:80], known, n=3, cutoff=cutoff)
    if not near and len(known) > _MAX_OFFERED:
        told = f"`{listed_by}` lists the {len(known)}" if listed_by else f"there are {len(known)}"
    else:
        told = f"nearest: {', '.join(near or known or ['none'])}"
    return f"{name[:60]!r}; {told}"


class Registry(Generic[T]):
    """Names to things of one kind.

    `kind` names them in errors. On first use the module `home`, or every module of that package, is
    imported, so that each registers what it holds, and the installed plug-ins of the entry-point
    group `group` (such as `perfmodel.kernels`) are added; each is loaded when it is asked for,
    since it may itself import what asks for it. `listed_by` is the command that lists all names.
    """

    def __init__(
        self, kind: str, group: str | None = None, home: str | None = None, listed_by: str = ""
    ) -> None:
        self.kind, self._listed_by, self._group, self._home = kind, listed_by, group, home
        self._items: dict[str, T] = {}
        self._plug_ins: dict[str, EntryPoint] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """A decorator that files its function or class under `names`."""

        def add(item: T) -> T:
            for name in names:
                if name in self._items:
                    raise PerfmodelError(f"{self.kind} {name!r} is registered twice")
                self._items[name] = item
            return item

        return add

    def __getitem__(self, name: str) -> T:
        entry = self.get(name)
        if entry is None:
            known = list(self)
            raise PerfmodelError(
                f"unknown {self.kind} {offered(str(name), known, self._listed_by)}"
            )
        return entry

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._items or name in self._plug_ins

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted({**self._items, **self._plug_ins}))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def get(self, name: str) -> T | None:
        """The thing filed under `name`, or None.

        Raises `PerfmodelError` for that of a plug-in which cannot be loaded.
        """
        self._load()
        entry = self._items.get(name)
        if entry is None and name in self._plug_ins:
            point = self._plug_ins[name]
            where = f"{self.kind} {name!r}: the plug-in {point.value}"
            try:
                loaded = point.load()
            except (Exception, SystemExit) as error:
                raise PerfmodelError(
                    f"{where} does not load: {type(error).__name__}: {error}"
                ) from error
            entry = self._items[name] = loaded
            IN_USE.append(f"{name} ({point.value})")
        return entry

    def _load(self) -> None:
        if self._home is not None:
            home, self._home = self._home, None
            for module in iter_modules(getattr(import_module(home), "__path__", ())):
                import_module(f"{home}.{module.name}")
        if self._group is not None:
            group, self._group = self._group, None
            for point in _installed():
                if point.group != group:
                    continue
                if point.name in self._items or point.name in self._plug_ins:
                    raise PerfmodelError(f"{self.kind} {point.name!r} is registered twice")
                self._plug_ins[point.name] = point


_OUR_GROUPS = b"[perfmodel."


@cache
def _installed() -> Sequence[EntryPoint]:
    """Our plug-ins among the entry points of all packages, read once.

    `importlib.metadata` takes a fiftieth of a breakdown to load: only where a folder of packages
    mentions one, or where packages lie in archives.
    """
    places = [Path(place) for place in sys.path]
    if not any(map(_may_hold_plug_ins, places)):
        return ()

    from importlib.metadata import entry_points

    points = entry_points()
    ours = [group for group in points.groups if group.startswith("perfmodel.")]
    return [point for group in ours for point in points.select(group=group)]


def _may_hold_plug_ins(place: Path) -> bool:
    if place.suffix == ".egg" or place.is_file():
        return True
    try:
        files = place.glob("*-info/entry_points.txt")
        return any(_OUR_GROUPS in file.read_bytes() for file in files)
    except OSError:
        return True
