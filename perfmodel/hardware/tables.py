"""TOML files, and what `extends` and names of other parts in them stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomllib

from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.hardware.parts import KINDS, Part, kind_of
from perfmodel.hardware.schema import fields_of, unknown_key

Table = dict[str, Any]
Lookup = Callable[[str, type[Part] | None], tuple[type[Part], Table]]
"""A name and the type wanted, to the type and the expanded table of the part it names."""

MAX_BYTES = 1_000_000
_NOT_INHERITED = ("name", "aliases")


def read_table(path: Path) -> Table:
    """The table of a TOML file. Raises `HardwareError` when it cannot be read or is no TOML."""
    try:
        return tomllib.loads(read_bytes(path, max_bytes=MAX_BYTES).decode())
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise HardwareError(f"{path}: not a text file in UTF-8") from None
    except RecursionError:
        raise HardwareError(f"{path}: not valid TOML: nested too deeply") from None
    except HardwareError:
        raise
    except PerfmodelError as error:
        raise HardwareError(str(error)) from None


def expand(table: Table, where: str, lookup: Lookup, *, name: str) -> tuple[type[Part], Table]:
    """`table` with `extends`, `kind` and the names of other parts replaced by what they stand for.

    `name` is the part's, unless the table has one. Raises `HardwareError`.
    """
    table = dict(table)
    kind, parent = table.pop("kind", None), table.pop("extends", None)
    if kind is None and parent is None:
        raise HardwareError(
            f"{where}: kind is missing: expected one of "
            f'{", ".join(KINDS)}; or extends = "NAME" to start from a known part'
        )
    if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
        raise HardwareError(
            f"{where}: kind: expected one of {', '.join(KINDS)}, got {str(kind)[:60]!r}"
        )
    base: Table = {}
    cls = KINDS[kind] if kind is not None else None
    if parent is not None:
        cls, base = _named(parent, f"{where}: extends", cls, lookup)
    assert cls is not None
    table.setdefault("name", name)
    return cls, merge(cls, base, table, where, lookup)


def merge(cls: type[Part], base: Table, table: Table, where: str, lookup: Lookup) -> Table:
    """`base` with the keys of `table` over it, part by part; figures changed lose their source."""
    known = fields_of(cls)
    merged = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    merged["source"] = dict(base.get("source", {}))
    for key, value in table.items():
        entry = known.get(key)
        if entry is None and key != "source":
            raise HardwareError(unknown_key(cls, key, where))
        if entry is not None and entry.is_part:
            value = _part(entry.type, base.get(key), value, f"{where}: {key}", lookup)
        elif entry is not None and entry.is_figure:
            merged["source"][key] = f"given in {where}"
        if key != "source":
            merged[key] = value
    stated = table.get("source", {})
    merged["source"] = merged["source"] | stated if isinstance(stated, dict) else stated
    return merged


def _part(cls: type[Part], base: Table | None, value: Any, where: str, lookup: Lookup) -> Any:
    if isinstance(value, str):
        return _named(value, where, cls, lookup)[1]
    if not isinstance(value, dict):
        return value
    if base is not None and "extends" not in value:
        changed = {"name": f"{base['name']} (changed)"} | value
        return merge(cls, base, {k: v for k, v in changed.items() if k != "kind"}, where, lookup)
    return expand({"kind": kind_of(cls)} | value, where, lookup, name=where.rsplit(": ", 1)[-1])[1]


def _named(
    name: Any, where: str, cls: type[Part] | None, lookup: Lookup
) -> tuple[type[Part], Table]:
    if not isinstance(name, str):
        raise HardwareError(f"{where}: expected the name of a part or a file, got {name!r:.60}")
    try:
        found, table = lookup(name, cls)
    except HardwareError as error:
        raise HardwareError(f"{where}: {error}") from None
    if cls is not None and found is not cls:
        raise HardwareError(
            f"{where}: expected a {kind_of(cls)}, but {name!r} is a {kind_of(found)}"
        )
    return found, table
