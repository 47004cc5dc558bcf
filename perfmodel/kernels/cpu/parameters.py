"""Parameters of CPU models: physical defaults from a device's figures, or a calibration's values.

A device file may hold tables `[calibration.FAMILY]` and `[calibration."FAMILY.OP"]`, an op that is
not forward with its direction (`vector.relu`, `embedding.embedding_bag_bwd`); an op's value goes
before its family's, and that before the default. Tables that begin with `alone.` hold for ops that
are called alone, over and over; the others for ops within a program, where heap, caches and threads
are in another state. Either stands in for the other where it is all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from perfmodel.errors import ModelError
from perfmodel.hardware import Device

ALONE = "alone."
Default = float | Callable[[Device], float]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a model, above 0: its default, the range a fit may choose from, its meaning.

    `per_op` says that each op of the family may have a value of its own; `usual` are defaults of
    single ops, by section.
    """

    name: str
    default: Default
    low: float
    high: float
    meaning: str
    per_op: bool = False
    usual: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def default_on(self, device: Device, section: str = "") -> float:
        """The default on `device` of the op `section`, within the range."""
        value = self.usual.get(section, self.default)
        value = value(device) if callable(value) else value
        return min(max(value, self.low), self.high)


def section_of(family: str, op: str, direction: str = "fwd") -> str:
    """Name of the table of an op's own values."""
    return f"{family}.{op}" if direction == "fwd" else f"{family}.{op}_{direction}"


def tables_of(family: str, section: str, alone: bool) -> tuple[str, str, str, str]:
    """The tables that hold for an op, those that go before others last."""
    within, by_itself = (family, section), (f"{ALONE}{family}", f"{ALONE}{section}")
    return (*within, *by_itself) if alone else (*by_itself, *within)


def values_of(
    family: str,
    section: str,
    parameters: Sequence[Parameter],
    device: Device,
    alone: bool = False,
) -> dict[str, float]:
    """Every parameter of `section`, an op of `family`, on `device`.

    Raises `ModelError` where the device's calibration holds a name that there is not, or a value
    that cannot be.
    """
    found = {each.name: each.default_on(device, section) for each in parameters}
    for table in tables_of(family, section, alone):
        given = device.calibration.get(table, {})
        _check(given, parameters, f"{device.name}: calibration.{table}")
        found |= given
    return found


def _check(given: Mapping[str, float], parameters: Sequence[Parameter], where: str) -> None:
    known = {parameter.name: parameter for parameter in parameters}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=2) or list(known)
            raise ModelError(f"{where}: unknown key {name}; expected: {', '.join(near)}")
        low, high = known[name].low, known[name].high
        if not low <= value <= high:
            raise ModelError(f"{where}: {name}: expected {low:g} to {high:g}, got {value:g}")
