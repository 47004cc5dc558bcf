"""From a TOML file to a part: `extends`, names of other parts, every key checked on the way; from
parts to the figures that an answer follows from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from perfmodel.base.schema import Limits, Table, convert, describe, require_keys, short
from perfmodel.base.units import unit_of
from perfmodel.errors import HardwareError
from perfmodel.hardware.parts import KINDS, Cluster, Device, Node, Part, a_kind_of, kind_of

P = TypeVar("P", bound=Part)
MAX_NODES = 100_000
LIMITS = {
    "gb_per_s": Limits(1e-3, 1e6, "GB/s (10**9 bytes per second, one direction)"),
    "_tflop_per_s": Limits(1e-3, 1e6, "TFLOP/s (dense)"),
    "_bytes": Limits(1e5, 1e15, "bytes"),
    "sector_bytes": Limits(64, 1e6, "bytes"),
    "_bytes_per_sm": Limits(1e3, 1e8, "bytes"),
    "_mhz": Limits(10, 1e5, "MHz"),
    "_w": Limits(1, 1e5, "watts"),
    "_us": Limits(1e-3, 1e5, "microseconds"),
    "_per_us": Limits(1e-3, 1e5, "per microsecond"),
    "_iops": Limits(1, 1e9, "operations per second"),
    "_writes_per_day": Limits(1e-2, 1e4, "times per day"),
    "_frac": Limits(1e-3, 1, "a fraction"),
    "_ratio": Limits(1e-2, 100, "a ratio"),
    "_usd": Limits(1, 1e10, "US dollars"),
    "_usd_per_hour": Limits(1e-3, 1e6, "US dollars per hour"),
    "nodes": Limits(1, MAX_NODES, "a count"),
    "": Limits(1, 1e7, "a count"),
}
"""By the suffix of a key."""

UNSOURCED_KEYS = ("name", "maker", "based_on", "usual_node", "usual_host")
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
    def has_source(self) -> bool:
        return self.is_figure or (self.type is str and self.name not in UNSOURCED_KEYS)

    @property
    def limits(self) -> Limits | None:
        """Of a figure, by the longest suffix of its name."""
        if not self.is_figure:
            return None
        return LIMITS[max((end for end in LIMITS if self.name.endswith(end)), key=len)]

    @property
    def expected(self) -> str:
        """What the value must be, in words."""
        if self.is_part:
            return f"the name of {a_kind_of(self.type)}, or a table that describes one"
        return describe(self.type, self.limits)


@cache
def fields_of(kind: str) -> dict[str, Field]:
    """The keys of a kind of part, but for `source`."""
    hints, result = get_type_hints(KINDS[kind]), {}
    for entry in fields(KINDS[kind]):
        if entry.name == "sources":
            continue
        its = hints[entry.name]
        if isinstance(its, UnionType):
            its = next(each for each in get_args(its) if each is not type(None))
        required = entry.default is MISSING and entry.default_factory is MISSING
        result[entry.name] = Field(entry.name, its, required)
    return result


def build_part(cls: type[P], table: dict[str, Any], where: str) -> P:
    """The part that `table` describes; its own parts are already tables, never names.

    `where` is the file, and the key within it for a part of a part. Raises `HardwareError` for an
    unknown or missing key, a wrong type, and a value that cannot exist.
    """
    known = fields_of(kind_of(cls))
    require_keys(table, [*known, "source"], where, HardwareError, f" of {a_kind_of(cls)}")
    for entry in known.values():
        if entry.required and entry.name not in table:
            raise HardwareError(
                f"{where}: {entry.name} is missing: expected {entry.expected}; "
                f'or take it from another {kind_of(cls)} with extends = "NAME"'
            )
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "source":
            continue
        entry, place = known[key], f"{where}: {key}"
        if not entry.is_part:
            value = convert(entry.type, value, place, HardwareError, entry.limits)
            if get_origin(entry.type) is Mapping:  # of tables
                value = MappingProxyType({k: MappingProxyType(each) for k, each in value.items()})
        elif isinstance(value, dict):
            value = build_part(entry.type, value, place)
        else:
            raise HardwareError(f"{place}: expected {entry.expected}, got {short(value)}")
        values[key] = value
    if "source" in table:
        place, stated = f"{where}: source", [name for name in known if known[name].has_source]
        require_keys(table["source"], stated, place, HardwareError)
        sources = convert(Mapping[str, str], table["source"], place, HardwareError)
        values["sources"] = MappingProxyType(sources)
    return consistent(cls(**values), where)


class InconsistentError(HardwareError):
    """Figures that are each possible, and not together."""


def consistent(part: P, where: str) -> P:
    """`part`; `InconsistentError` where its figures cannot be together."""
    rules: dict[str, bool] = {}
    it: Part = part
    if isinstance(it, Device):
        has_bus = it.target == "cpu" or it.pcie_gb_per_s is not None
        rules = {
            "l2_bytes to be smaller than hbm_bytes": it.l2_bytes < it.hbm_bytes,
            "base_mhz to be at most boost_mhz": (it.base_mhz or 0) <= it.boost_mhz,
            "pcie_gb_per_s: only a CPU has none": has_bus,
        }
    elif isinstance(it, Node):
        has_drives = it.storage is not None or it.drives is None
        rules = {
            "nic and nics, or neither": (it.nic is None) == (it.nics is None),
            "storage, of which drives is the number": has_drives,
            "link_domain_gpus to be at least gpus": (it.link_domain_gpus or it.gpus) >= it.gpus,
        }
    for expected, holds in rules.items():
        if not holds:
            raise InconsistentError(f"{where}: expected {expected}")
    return part


Lookup = Callable[[str, type[Part] | None], tuple[type[Part], Table]]
"""A name and the type wanted, to the type and the expanded table of the part it names."""

_NOT_INHERITED = ("name", "aliases")


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
    known = fields_of(kind_of(cls))
    merged = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    merged["source"] = dict(base.get("source", {}))
    require_keys(table, [*known, "source"], where, HardwareError, f" of {a_kind_of(cls)}")
    for key, value in table.items():
        if key == "source":
            continue
        if known[key].is_part:
            value = _part(known[key].type, base.get(key), value, f"{where}: {key}", lookup)
        elif known[key].is_figure:
            merged["source"][key] = f"given in {where}"
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
        result, table = lookup(name, cls)
    except HardwareError as error:
        raise HardwareError(f"{where}: {error}") from None
    if cls is not None and result is not cls:
        raise HardwareError(
            f"{where}: expected {a_kind_of(cls)}, but {name!r} is {a_kind_of(result)}"
        )
    return result, table


@dataclass(frozen=True)
class Figure:
    """One figure of a part, as `perfmodel hardware` shows it."""

    key: str
    value: float
    source: str


def figures(part: Part) -> list[Figure]:
    """Every figure that `part` itself holds, with its source; parts within it are left out."""
    return [
        Figure(key, getattr(part, key), part.sources.get(key, "not stated"))
        for key, entry in fields_of(kind_of(part)).items()
        if entry.is_figure and getattr(part, key) is not None
    ]


ASSUMED, RECALLED, SOURCED = "assumed", "recalled", "sourced"
NAMING_FIELDS = ("name", "maker", "sources", "aliases", "based_on")
"""What names a part; no duration depends on it."""
_ASSUMED = (ASSUMED, "not stated")


@dataclass(frozen=True)
class FigureRead:
    """A figure of a part that an answer uses."""

    part: str
    figure: str
    """`device.hbm_gb_per_s`."""
    value: float | str | None
    source: str

    @property
    def unit(self) -> str:
        """`GB/s`, …; empty for texts."""
        name = self.figure.partition(".")[2]
        return "" if isinstance(self.value, str) else unit_of(name) or "count"

    @property
    def grounds(self) -> str:
        """`assumed`, `recalled` (from a data sheet that was not at hand), else `sourced`."""
        if self.source.startswith(_ASSUMED):
            return ASSUMED
        return RECALLED if RECALLED in self.source else SOURCED

    def to_dict(self) -> dict[str, float | str | None]:
        keys = ("part", "figure", "value", "unit", "grounds", "source")
        return {key: getattr(self, key) for key in keys}


def figures_used(machine: Cluster, parts: Collection[str]) -> tuple[FigureRead, ...]:
    """The figures of the parts of `machine` whose kinds are among `parts` (`device`), and single
    ones that are (`device.link_gb_per_s`), in order of their keys; prices are left out."""
    return tuple(sorted(_used(machine, "cluster", parts), key=lambda each: each.figure))


def _used(part: Part, kind: str, parts: Collection[str]) -> Iterable[FigureRead]:
    for name, entry in fields_of(kind).items():
        value = getattr(part, name)
        if isinstance(value, Part):
            yield from _used(value, kind_of(value), parts)
        elif value is None or not entry.has_source or "_usd" in name or name in NAMING_FIELDS:
            continue
        elif kind in parts or f"{kind}.{name}" in parts:
            yield figure_read(part, kind, name)


def figure_read(part: Part, kind: str, name: str) -> FigureRead:
    entry, value = fields_of(kind)[name], getattr(part, name)
    value = value if entry.is_figure else str(value)
    source = part.sources.get(name, "not stated" if entry.has_source else "its name")
    return FigureRead(part.name, f"{kind}.{name}", value, source)


def figure_values(part: Part, kind: str = "cluster") -> dict[str, Any]:
    """What durations may depend on of a part and of those in it, by key."""
    result: dict[str, Any] = {}
    for name, entry in fields_of(kind).items():
        value = getattr(part, name)
        if isinstance(value, Part):
            result = figure_values(value, kind_of(value)) | result
        elif name not in NAMING_FIELDS and not entry.is_part:
            result[f"{kind}.{name}"] = value
    return result
