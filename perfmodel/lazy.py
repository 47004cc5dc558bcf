"""Packages whose names load on first use, so that importing one of their modules loads no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module


def exports(
    package: str, homes: Mapping[str, str], packages: Collection[str] = ()
) -> Callable[[str], object]:
    """The `__getattr__` of a `package` whose names lie in the modules `homes` (name to module), and
    which has the `packages` itself.

    No name may be that of one of the package's own modules: importing that would replace it.
    """

    def load(name: str) -> object:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        if name in packages:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
