"""What loads when it is first asked for: things that register under a name or that an installed
package offers, names of packages, libraries that not every install has, what one of them (Numba)
compiles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfmodel.errors import LibraryError, PerfmodelError

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
            told = offered(str(name), list(self), self._listed_by)
            raise PerfmodelError(f"unknown {self.kind} {told}")
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
            home, self._home = self._home, None  # its modules may ask while they are imported
            try:
                for module in iter_modules(getattr(import_module(home), "__path__", ())):
                    import_module(f"{home}.{module.name}")
            except BaseException:  # Ctrl-C too: the next call imports the rest
                self._home = home
                raise
        if self._group is not None:
            group, self._group = self._group, None
            for point in _installed():
                if point.group != group:
                    continue
                if point.name in self._items or point.name in self._plug_ins:
                    raise PerfmodelError(f"{self.kind} {point.name!r} is registered twice")
                self._plug_ins[point.name] = point


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
        return any(b"[perfmodel." in file.read_bytes() for file in files)
    except OSError:
        return True


F = TypeVar("F", bound=Callable[..., Any])
_INSTALLED_AS = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a `package`: all that its file imports
    `if TYPE_CHECKING`.

    So each name is written once, for type checkers and for this; it is read from the file's source.
    `__dir__`, which tab completion asks, has the names of `__all__` and loads none of them.
    No name may be that of one of the package's own modules: importing that would replace it.
    """
    spec: Any = sys.modules[package].__spec__  # pytest's loader, of plug-ins, has no get_source
    homes: dict[str, str] = {}
    for statement in ast.parse(spec.loader.get_data(spec.origin)).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for each in statement.body:
                assert isinstance(each, ast.ImportFrom)
                homes |= {name.name: str(each.module) for name in each.names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, names, sorted(homes)


def library(name: str) -> Any:
    """The module `name` of a library that only some answers need, so that not every install has it.

    Raises `LibraryError`, with the command that installs it, where it is not there.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        own = name.partition(".")[0]
        if error.name != own and error.name != name:
            raise
        package = _INSTALLED_AS.get(own, own)
        raise LibraryError(f"{own} is not installed: `pip install {package}`") from None


def compiled(**options: Any) -> Callable[[F], F]:
    """Numba's compiler, to decorate a function that is compiled on its first call; the result is
    kept beside it or in the user's cache.

    Where neither folder can be written, it is compiled anew in every process.
    """

    def made(function: F) -> F:
        numba = library("numba")
        try:
            machine_code: F = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            machine_code = numba.njit(**options)(function)
        return machine_code

    return made
