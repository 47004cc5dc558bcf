"""What an answer rests on of a machine: the figures of the parts that it uses, with their sources;
the device of the catalogue that one was made from by changing figures; generations of GPUs, and
whose fitted figures one takes that has none of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from perfmodel.base.registry import Registry
from perfmodel.base.units import unit_of
from perfmodel.hardware import catalogue
from perfmodel.hardware.parts import KINDS, Cluster, Device, Part, kind_of
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


_OF_A_CHIP = ("target", "compute_capability", "sm_count")


def original(device: Device) -> Device:
    """The catalogue's device that `device` was made from by changing figures; else itself, also
    where it is another chip by now."""
    if device.based_on is None:
        return device
    known = catalogue.device(device.based_on)
    is_its_chip = all(getattr(known, name) == getattr(device, name) for name in _OF_A_CHIP)
    return known if is_its_chip and known != device else device


@dataclass(frozen=True)
class Generation:
    """A maker's generation. A model that has no figures of it takes those of the generation `like`
    it, else usual ones. `reduces_in_switch`: links over a switch that adds up by itself (NVLink
    SHARP)."""

    maker: str
    like: str | None = None
    reduces_in_switch: bool = False


GENERATIONS: Registry[Generation] = Registry("device generation", "perfmodel.generations")
"""By `architecture` of a device."""

for _name in ("maxwell", "pascal", "volta", "turing", "ampere", "ada"):
    GENERATIONS.register(_name)(Generation("nvidia"))
for _name in ("hopper", "blackwell"):
    GENERATIONS.register(_name)(Generation("nvidia", reduces_in_switch=True))
GENERATIONS.register("rtx-blackwell")(Generation("nvidia", "ada"))
for _name, _like in (("gcn5", None), ("cdna", None), ("cdna2", "cdna"), ("cdna3", "cdna2")):
    GENERATIONS.register(_name)(Generation("amd", _like))
GENERATIONS.register("cdna4")(Generation("amd", "cdna3"))


def lineage(generation: str | None) -> Iterator[str]:
    """`generation`, then the one that it is like, and so on; an unknown one stands alone."""
    seen: set[str] = set()
    while generation and generation not in seen:
        yield generation
        seen.add(generation)
        known = GENERATIONS.get(generation)
        generation = known.like if known else None


def nearest_known(generation: str | None, known: Collection[str]) -> str | None:
    """The first of its lineage that is among `known`; None if none is."""
    return next((each for each in lineage(generation) if each in known), None)


def reduces_in_switch(generation: str) -> bool:
    """Whether switches between such devices add up by themselves; unknown ones do not."""
    known = GENERATIONS.get(generation)
    return known is not None and known.reduces_in_switch


def unknown_generations(devices: Iterable[Device]) -> list[str]:
    """A note for every GPU of a generation that nobody registered."""
    return [
        f"{device.name}: nothing is known of the generation {device.architecture!r}: models take "
        f"usual figures (known: {', '.join(GENERATIONS)})"
        for device in {each.name: each for each in devices}.values()
        if device.target != "cpu" and device.architecture
        if device.architecture not in GENERATIONS
    ]
