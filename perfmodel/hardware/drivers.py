"""Which devices go by a name that a driver reports, or that a trace records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from perfmodel.hardware.parts import Device

_MAKER = re.compile(r"\b(nvidia|amd|tesla|geforce|instinct|radeon|graphics|corporation)\b|\([rc]\)")
_SIZE = re.compile(r"\b(\d+) ?gi?b\b")
_MEMORY = re.compile(r"\b\d+ ?gi?b\b|\bhbm\w+")
_TOLERANCE_FRAC = 0.15
"""Drivers report up to 8 % less than the datasheet, which mixes GB with GiB (7 %)."""


def called(name: str, devices: Iterable[Device]) -> list[Device]:
    """The devices that go by `name`, without regard to case and maker.

    If there is none, those that go by it without regard to memory size and kind either.
    """
    devices = list(devices)
    return _matching(name, devices, plain) or _matching(name, devices, _bare)


def memory_in(name: str) -> int | None:
    """The memory in bytes that a name tells (`80GB` is 80 GiB), or None."""
    size = _SIZE.search(plain(name))
    return int(size[1]) * 2**30 if size else None


def has_memory(device: Device, memory_bytes: int) -> bool:
    """Whether a driver that reports `memory_bytes` may mean this device."""
    return abs(memory_bytes / device.hbm_bytes - 1) <= _TOLERANCE_FRAC


def _matching(name: str, devices: list[Device], form: Callable[[str], str]) -> list[Device]:
    wanted = form(name)
    return [each for each in devices if wanted in map(form, (each.name, *each.aliases))]


def plain(name: str) -> str:
    """`name` in lower case, with one space between words and without maker."""
    return " ".join(re.sub(r"[-_ ]+", " ", _MAKER.sub(" ", name.lower())).split())


def _bare(name: str) -> str:
    """As `plain`, without memory size and kind."""
    return " ".join(_MEMORY.sub(" ", plain(name)).split())
