"""The profiles that come with the package, and which one stands in for a missing trace."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.hardware import Device


@dataclass(frozen=True)
class Shipped:
    """A profile of the catalogue, and what it is for."""

    name: str
    target: str
    architectures: tuple[str, ...]
    """Device generations in whose years hosts and frameworks were like those of its traces."""
    host: str | None
    """The host that its traces are assumed to have run on (they name none): the usual one of their
    device. None where these have several: then the usual one of the target's device."""


SHIPPED = (
    Shipped("lin2022-v100", "cuda", ("maxwell", "pascal", "volta", "turing"), None),
    Shipped("a100-dlrm", "cuda", ("ampere",), "epyc-7742"),
    Shipped("h100-inference", "cuda", ("ada", "hopper", "blackwell"), "xeon-platinum-8480c"),
    Shipped("mi300x", "rocm", ("gcn5", "cdna", "cdna2", "cdna3", "cdna4"), "epyc-9654"),
)
"""From old to new."""


def shipped_for(device: Device) -> Shipped:
    """The profile whose traces ran on devices of the same years; else the newest of its target."""
    own = [profile for profile in SHIPPED if profile.target == device.target]
    fitting = [profile for profile in own if device.architecture in profile.architectures]
    return (fitting or own[-1:])[0]
