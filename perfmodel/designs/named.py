"""Parts that a design's setting names: in the catalogue, or in a file of the user."""

from __future__ import annotations

from typing import TypeVar

from perfmodel.errors import UsageError
from perfmodel.hardware import Part, kind_of, load, names

P = TypeVar("P", bound=Part)


def named(name: str, cls: type[P], setting: str) -> P:
    """The part of class `cls` that `setting` names, or whose `.toml` file it is.

    Raises `UsageError` for another name, with those that there are, and for another kind of part;
    `HardwareError` for a file that does not hold.
    """
    kind = kind_of(cls)
    known = names(kind)
    is_file = name.endswith(".toml") or "/" in name
    if not is_file and name not in known:
        raise UsageError(f"{setting} {name[:80]!r}: unknown: one of {', '.join(known)}, or a file")
    part = load(name, kind)
    if not isinstance(part, cls):
        raise UsageError(f"{setting} {name}: it is a {kind_of(part)}, expected a {kind}")
    return part
