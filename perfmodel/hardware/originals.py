"""Which device of the catalogue one was made from by changing figures.

Generations of GPUs, and whose fitted figures one takes that has none of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from perfmodel.base.registry import Registry
from perfmodel.hardware import catalogue
from perfmodel.hardware.parts import Device

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
