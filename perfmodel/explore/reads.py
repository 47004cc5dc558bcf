"""Which figures of a machine a computation reads: what does not read a figure is not done again.

A result holds for every machine that agrees on the figures read, since nothing else was looked at.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, cast

from perfmodel.hardware import KINDS, Cluster, Part

UNREAD = ("name", "maker", "sources", "aliases")
"""What names a part; no duration depends on it."""


@cache
def figures_of(kind: str) -> frozenset[str]:
    """The keys of a kind of part that durations may depend on; parts within it have their own."""
    return frozenset(
        each.name
        for each in fields(KINDS[kind])
        if each.name not in UNREAD and each.name not in KINDS
    )


def key(kind: str, name: str) -> str:
    """`device.hbm_gb_per_s` for a figure of a part."""
    return f"{kind}.{name}"


@cache
def _recording(kind: str) -> type[Part]:
    """A part of `kind` that notes which of its figures are read.

    Two of them are equal only if they are the same: caches by device would hide what is read.
    """
    cls = KINDS[kind]
    known = figures_of(kind)

    def read(self: Part, name: str) -> Any:
        if name in known:
            object.__getattribute__(self, "log").add(key(kind, name))
        return object.__getattribute__(self, name)

    def same(self: Part, other: object) -> bool:
        return self is other

    body: dict[str, Any] = {
        "__slots__": ("log",),
        "__module__": cls.__module__,
        "__getattribute__": read,
        "__eq__": same,
        "__hash__": object.__hash__,
    }
    return type(cls.__name__, (cls,), body)


def recorded(machine: Cluster) -> tuple[Cluster, set[str]]:
    """`machine`, and the set that fills with what is read of it and of its parts."""
    log: set[str] = set()
    return cast("Cluster", _recorded(machine, "cluster", log)), log


def _recorded(part: Part, kind: str, log: set[str]) -> Part:
    found = object.__new__(_recording(kind))
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, Part):
            value = _recorded(value, each.name, log)
        object.__setattr__(found, each.name, value)
    object.__setattr__(found, "log", log)
    return found


def values_of(part: Part, kind: str = "cluster") -> dict[str, Any]:
    """Every figure of a part and of those in it, by key."""
    found: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, Part):
            found |= values_of(value, each.name)
        elif each.name in figures_of(kind):
            found[key(kind, each.name)] = value
    return found
