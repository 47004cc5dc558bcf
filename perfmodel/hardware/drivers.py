"""Which devices go by a name that a driver reports, or that a trace records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

from perfmodel.hardware.parts import Device

_MAKER = re.compile(
    r"\b(nvidia|amd|intel|tesla|geforce|instinct|radeon|graphics|corporation)\b|\([^()]*\)"
)
"""Words that name a maker or a line of products, and remarks in parentheses."""
_CPU = re.compile(r"\b\d+-core\b|\b(cpu|processor)\b|@ ?[\d.]+ ?ghz\b")
"""What Linux writes around the name of a CPU."""
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


def bare_words(name: str) -> list[str]:
    """The words of `name` that every device holds which goes by it."""
    return _bare(name).split()


def memory_in(name: str) -> int | None:
    """The memory in bytes that a name tells (`80GB` is 80 GiB), or None."""
    size = _SIZE.search(plain(name))
    return int(size[1]) * 2**30 if size else None


def has_memory(device: Device, memory_bytes: int) -> bool:
    """Whether a driver that reports `memory_bytes` may mean this device."""
    return abs(memory_bytes / device.hbm_bytes - 1) <= _TOLERANCE_FRAC


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Of the catalogue's names, those that hold every word of `name`, else the four most alike.

    Alike as a whole, or in as many first words: `h900` is more like `h100-sxm` than like `p100`.
    """
    words = plain(name)[:80].split()
    within = [each for each in known if words and all(word in each for word in words)]
    if within:
        return sorted(within, key=lambda each: not each.startswith(words[0]))
    text = "-".join(words)

    def likeness(each: str) -> float:
        begin = "-".join(each.split("-")[: max(len(words), 1)])
        return max(SequenceMatcher(None, text, form).ratio() for form in (each, begin))

    return sorted(known, key=likeness, reverse=True)[:4]


def _matching(name: str, devices: list[Device], form: Callable[[str], str]) -> list[Device]:
    wanted = form(name)
    return [each for each in devices if wanted in map(form, (each.name, *each.aliases))]


def plain(name: str) -> str:
    """`name` in lower case, with one space between words, without maker and remarks."""
    return " ".join(re.sub(r"[-_ ]+", " ", _CPU.sub(" ", _MAKER.sub(" ", name.lower()))).split())


def _bare(name: str) -> str:
    """As `plain`, without memory size and kind."""
    return " ".join(_MEMORY.sub(" ", plain(name)).split())
