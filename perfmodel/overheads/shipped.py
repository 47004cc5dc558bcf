"""The profiles that come with the package, and which one stands in for a missing trace."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.hardware import Device


@dataclass(frozen=True)
class Shipped:
    """A profile of the catalogue, and what it is for."""

    name: str
    architectures: tuple[str, ...]
    """Device generations in whose years hosts and frameworks were like those of its traces."""
    host: str | None
    """The host of its traces in the hardware catalogue; None where nobody says: then it is taken
    to be as fast as the target's."""


SHIPPED = (
    Shipped("lin2022-v100", ("maxwell", "pascal", "volta", "turing", "gcn5", "cdna"), None),
    Shipped("a100-dlrm", ("ampere", "cdna2"), None),
    Shipped("h100-inference", ("ada", "hopper", "blackwell"), None),
    Shipped("mi300x", ("cdna3", "cdna4"), None),
)
_NEWEST = {"cuda": SHIPPED[2], "rocm": SHIPPED[3]}


def shipped_for(device: Device) -> Shipped:
    """The profile whose traces ran on devices of the same years as `device`."""
    for profile in SHIPPED:
        if getattr(device, "architecture", None) in profile.architectures:
            return profile
    return _NEWEST.get(device.target, SHIPPED[2])
