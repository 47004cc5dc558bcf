"""From a TOML file to a part: `extends`, names of other parts, and every key checked on the way."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.hardware.parts import KINDS, Device, Node, Part, kind_of

LIMITS: tuple[tuple[str, float, float, str], ...] = (
    ("_gb_per_s", 1e-3, 1e6, "GB/s (10**9 bytes per second, one direction)"),
    ("gb_per_s", 1e-3, 1e6, "GB/s (10**9 bytes per second, one direction)"),
    ("_tflop_per_s", 1e-3, 1e6, "TFLOP/s (dense)"),
    ("_bytes", 1e5, 1e15, "bytes"),
    ("sector_bytes", 64, 1e6, "bytes"),
    ("_bytes_per_sm", 1e3, 1e8, "bytes"),
    ("_mhz", 10, 1e5, "MHz"),
    ("_w", 1, 1e5, "watts"),
    ("_us", 1e-3, 1e5, "microseconds"),
    ("_per_us", 1e-3, 1e5, "per microsecond"),
    ("_iops", 1, 1e9, "operations per second"),
    ("_writes_per_day", 1e-2, 1e4, "times per day"),
    ("_frac", 1e-3, 1, "a fraction"),
    ("_ratio", 1e-2, 100, "a ratio"),
    ("_usd", 1, 1e10, "US dollars"),
    ("_usd_per_hour", 1e-3, 1e6, "US dollars per hour"),
    ("", 1, 1e7, "a count"),
)
"""Suffix of a key, smallest and largest value that can exist, and what is expected in words."""

CONSISTENCY_RULES: tuple[tuple[type[Part], Callable[[Any], bool], str], ...] = (
    (Device, lambda it: it.l2_bytes < it.hbm_bytes, "l2_bytes to be smaller than hbm_bytes"),
    (Device, lambda it: (it.base_mhz or 0) <= it.boost_mhz, "base_mhz to be at most boost_mhz"),
    (
        Device,
        lambda it: it.target == "cpu" or it.pcie_gb_per_s is not None,
        "pcie_gb_per_s: only a CPU has none",
    ),
    (Node, lambda it: (it.nic is None) == (it.nics is None), "nic and nics, or neither"),
    (Node, lambda it: it.storage or it.drives is None, "storage, of which drives is the number"),
    (
        Node,
        lambda it: (it.link_domain_gpus or it.gpus) >= it.gpus,
        "link_domain_gpus to be at least gpus",
    ),
)
"""Kind of part, what must hold between its figures, and how to say that."""

UNSOURCED_KEYS = ("name", "maker", "usual_node", "usual_host")
"""Texts that name things and so need no source."""


@dataclass(frozen=True)
class Field:
    """One key of a part: its type without None, whether it must be given, what it may be."""

    name: str
    type: Any
    required: bool

    @property
    def is_part(self) -> bool:
        return self.type in KINDS.values()

    @property
    def is_figure(self) -> bool:
        return self.type in (int, float)

    @property
    def is_table(self) -> bool:
        """Whether it is a table of tables of numbers."""
        return get_origin(self.type) is Mapping

    @property
    def has_source(self) -> bool:
        return self.is_figure or (self.type is str and self.name not in UNSOURCED_KEYS)

    @property
    def limits(self) -> tuple[float, float, str]:
        suffixed = (row for row in LIMITS if self.name.endswith(row[0]))
        _, low, high, unit = max(suffixed, key=lambda row: len(row[0]))
        return low, high, unit

    @property
    def expected(self) -> str:
        """What the value must be, in words."""
        if self.is_figure:
            low, high, unit = self.limits
            number = "whole number" if self.type is int else "number"
            return f"a {number} from {low:g} to {high:g}, {unit}"
        if get_origin(self.type) is Literal:
            return "one of " + ", ".join(f'"{choice}"' for choice in get_args(self.type))
        if self.is_part:
            kind = kind_of(self.type)
            return f"the name of a {kind}, or a table that describes one"
        if self.is_table:
            return "tables of numbers"
        return "a list of strings" if get_origin(self.type) is tuple else "a text in quotes"


def _fields(cls: type[Part]) -> dict[str, Field]:
    hints = get_type_hints(cls)
    found = {}
    for entry in fields(cls):
        if entry.name == "sources":
            continue
        kind = hints[entry.name]
        if isinstance(kind, UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        required = entry.default is MISSING and entry.default_factory is MISSING
        found[entry.name] = Field(entry.name, kind, required)
    return found


_FIELDS = {kind: _fields(cls) for kind, cls in KINDS.items()}


def fields_of(cls: type[Part]) -> dict[str, Field]:
    """The keys that a file may give for a part of type `cls`."""
    return _FIELDS[kind_of(cls)]


def build_part(cls: type[Part], table: dict[str, Any], where: str) -> Part:
    """The part that `table` describes; its own parts are already tables, never names.

    `where` is the file, and the key within it for a part of a part. Raises `HardwareError` for an
    unknown or missing key, a wrong type, and a value that cannot exist.
    """
    known = fields_of(cls)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "source":
            values["sources"] = MappingProxyType(_sources(cls, value, where))
        elif key in known:
            values[key] = _value(known[key], value, where)
        else:
            raise HardwareError(unknown_key(cls, key, where))
    for entry in known.values():
        if entry.required and entry.name not in values:
            raise HardwareError(
                f"{where}: {entry.name} is missing: expected {entry.expected}; "
                f'or take it from another {kind_of(cls)} with extends = "NAME"'
            )
    part = cls(**values)
    for checked, holds, expected in CONSISTENCY_RULES:
        if isinstance(part, checked) and not holds(part):
            raise HardwareError(f"{where}: expected {expected}")
    return part


def unknown_key(cls: type[Part], key: str, where: str) -> str:
    """The message for a key that `cls` has not, naming the nearest that it has."""
    known = fields_of(cls)
    within = [name for name in known if key and key in name]
    near = within[:4] or get_close_matches(key, known, n=2, cutoff=0.6) or list(known)
    return f"{where}: unknown key {key} of a {kind_of(cls)}; expected: {', '.join(near)}"


def _value(entry: Field, value: Any, where: str) -> Any:
    bad = HardwareError(f"{where}: {entry.name}: expected {entry.expected}, got {_short(value)}")
    if entry.is_part:
        if not isinstance(value, dict):
            raise bad
        return build_part(entry.type, value, f"{where}: {entry.name}")
    if entry.is_figure:
        return _figure(entry, value, bad)
    if entry.is_table:
        return _tables(value, bad)
    if get_origin(entry.type) is tuple:
        if not isinstance(value, list) or not all(_is_text(item) for item in value):
            raise bad
        return tuple(value)
    choices = get_args(entry.type)
    if not _is_text(value) or (choices and value not in choices):
        raise bad
    return value


def _figure(entry: Field, value: Any, bad: HardwareError) -> int | float:
    low, high, _ = entry.limits
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad
    if entry.type is float:
        return float(value)
    if int(value) != value:
        raise bad
    return int(value)


def _tables(value: Any, bad: HardwareError) -> Mapping[str, Mapping[str, float]]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise bad
    for numbers in value.values():
        for number in numbers.values():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise bad
            if not isfinite(number):
                raise bad
    return MappingProxyType(
        {
            section: MappingProxyType({key: float(number) for key, number in numbers.items()})
            for section, numbers in value.items()
        }
    )


def _sources(cls: type[Part], table: Any, where: str) -> dict[str, str]:
    stated = [name for name, entry in fields_of(cls).items() if entry.has_source]
    if not isinstance(table, dict):
        raise HardwareError(
            f"{where}: source: expected a table of figure = text, got {_short(table)}"
        )
    for key, text in table.items():
        if key not in stated:
            near = get_close_matches(key, stated, n=2) or stated
            raise HardwareError(
                f"{where}: source.{key}: no such figure; expected: {', '.join(near)}"
            )
        if not _is_text(text):
            raise HardwareError(
                f"{where}: source.{key}: expected a text in quotes, got {_short(text)}"
            )
    return dict(table)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value.strip()) > 0 and value.isprintable()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
