"""What loads on first use: names of packages, libraries that not every install has, and what one of
them (Numba) compiles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from perfmodel.errors import LibraryError

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
