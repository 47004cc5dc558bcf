"""Which device of the catalogue one was made from by changing figures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache, partial
from itertools import chain
from operator import eq

from perfmodel.hardware.catalogue import device as catalogue_device
from perfmodel.hardware.catalogue import devices as catalogue_devices
from perfmodel.hardware.catalogue import names
from perfmodel.hardware.parts import Device

_OF_A_CHIP = ("target", "compute_capability", "sm_count")
_CACHE = ("l2_bytes",)
_OF_A_BOARD = ("hbm_gb_per_s", "boost_mhz", "fp32_tflop_per_s", "tdp_w", "gemm_peak_frac")
_OF_ITS_MEMORY = ("hbm_bytes", "memory_kind")
_MIN_EQUAL = 2


def original(device: Device) -> Device:
    """The catalogue's device that `device` is, or was made from by changing figures; else itself.

    That is the one of its chip, with its cache if there is one, with most figures of the board in
    common, two at least; of several, the one with the same memory (an H200 is an H100 but for it).
    """
    return _closest(device) or device


@lru_cache(maxsize=256)
def _closest(device: Device) -> Device | None:
    """None where that is itself."""
    chip, board = _figures(device, _OF_A_CHIP), _figures(device, _OF_A_BOARD)
    if _is_listed(device):
        return None
    alike = _boards().get(chip, ())
    in_common = partial(_in_common, board)
    cache, memory = _figures(device, _CACHE), _figures(device, _OF_ITS_MEMORY)

    def nearness(known: Device) -> tuple[bool, int, int]:
        same_memory = sum(map(eq, memory, _figures(known, _OF_ITS_MEMORY)))
        return cache == _figures(known, _CACHE), in_common(known), same_memory

    closest = max(alike, key=nearness, default=None)
    return None if closest is None or in_common(closest) < _MIN_EQUAL else closest


def _figures(device: Device, names: Iterable[str]) -> tuple[object, ...]:
    return tuple(getattr(device, name) for name in names)


def _is_listed(device: Device) -> bool:
    """Whether the catalogue has it as it is."""
    return device.name in _names() and catalogue_device(device.name) == device


_MIN_OF_RATES = 4


def slower_multiprocessors(device: Device) -> list[str]:
    """A note where `device` is one of the catalogue with more multiprocessors at the same rates:
    each of them is then slower, and what runs in as many rounds of blocks as before takes longer.
    """
    if device.target == "cpu" or _is_listed(device):
        return []

    def is_faster_each(known: Device) -> bool:
        own = device.fp32_tflop_per_s / device.sm_count
        return known.sm_count < device.sm_count and known.fp32_tflop_per_s / known.sm_count > own

    chip = [name for name in (*_OF_A_CHIP, *_CACHE) if name != "sm_count"]
    boards = (
        known
        for known in chain.from_iterable(_boards().values())
        if all(getattr(known, name) == getattr(device, name) for name in chip)
    )
    in_common = partial(_in_common, _figures(device, _OF_A_BOARD))
    known = max(filter(is_faster_each, boards), key=in_common, default=None)
    if known is None or in_common(known) < _MIN_OF_RATES:
        return []
    return [
        f"{known.name} with {device.sm_count} multiprocessors in the place of {known.sm_count} at "
        "the same rates: each multiprocessor is slower, and where the waves of blocks are the same "
        "a kernel takes longer"
    ]


def _in_common(board: tuple[object, ...], known: Device) -> int:
    """How many figures of the board are equal."""
    return sum(map(eq, board, _figures(known, _OF_A_BOARD)))


@cache
def _names() -> frozenset[str]:
    return frozenset(names("device"))


@cache
def _boards() -> dict[tuple[object, ...], list[Device]]:
    boards: dict[tuple[object, ...], list[Device]] = {}
    for each in catalogue_devices():
        boards.setdefault(_figures(each, _OF_A_CHIP), []).append(each)
    return boards
