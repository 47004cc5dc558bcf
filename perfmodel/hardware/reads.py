"""The figures of a machine that an answer follows from, by the parts that it uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any

from perfmodel.base.units import unit_of
from perfmodel.hardware.parts import KINDS, Cluster, Part, kind_of
from perfmodel.hardware.schema import fields_of

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
    unit: str
    """`GB/s`, …; empty for texts."""
    source: str

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
    for name, entry in fields_of(KINDS[kind]).items():
        value = getattr(part, name)
        if isinstance(value, Part):
            yield from _used(value, kind_of(value), parts)
        elif value is None or not entry.has_source or "_usd" in name or name in NAMING_FIELDS:
            continue
        elif kind in parts or f"{kind}.{name}" in parts:
            yield figure_read(part, kind, name)


def figure_read(part: Part, kind: str, name: str) -> FigureRead:
    entry, value = fields_of(KINDS[kind])[name], getattr(part, name)
    unit = (unit_of(name) or "count") if entry.is_figure else ""
    source = part.sources.get(name, "not stated" if entry.has_source else "its name")
    return FigureRead(
        part.name, f"{kind}.{name}", value if entry.is_figure else str(value), unit, source
    )


def figures_of(kind: str) -> frozenset[str]:
    """The keys of a kind of part that durations may depend on; parts within it have their own."""
    return frozenset(
        name
        for name, entry in fields_of(KINDS[kind]).items()
        if name not in NAMING_FIELDS and not entry.is_part
    )


def figure_values(part: Part, kind: str = "cluster") -> dict[str, Any]:
    """Every figure of a part and of those in it, by key."""
    result: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, Part):
            result = figure_values(value, kind_of(value)) | result
        elif each.name in figures_of(kind):
            result[f"{kind}.{each.name}"] = value
    return result
