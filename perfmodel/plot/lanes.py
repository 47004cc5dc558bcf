"""The lanes of a timeline: which resources are shown, in which order, under which names."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

_STREAM = re.compile(r"(^|/)(gpu|stream)")
_NUMBER = re.compile(r"(\d+)")


def is_stream(resource: str) -> bool:
    """Whether a resource is a device's stream; else it is a host thread."""
    return _STREAM.search(resource) is not None


def lanes(resource: NDArray[np.object_]) -> list[list[str]]:
    """The resources that have pieces, in groups: per rank its threads (main first), then its
    streams by number."""
    found = sorted(set(resource.tolist()), key=_natural)
    ranks = dict.fromkeys(_rank(name) for name in found)
    groups = []
    for rank in ranks:
        own = [name for name in found if _rank(name) == rank]
        threads = [name for name in own if not is_stream(name)]
        threads.sort(key=lambda name: not name.endswith("main"))
        groups += [threads, [name for name in own if is_stream(name)]]
    return [group for group in groups if group]


def _rank(resource: str) -> str:
    return resource.split("/")[0] if "/" in resource else ""


def lane_texts(names: list[str]) -> dict[str, str]:
    """Per resource (`rank/thread`, `rank/device/stream`) its label: what all share is left out."""
    parts = {name: name.split("/") for name in names}
    ranks = {part[0] for part in parts.values() if len(part) > 1}
    devices = {(part[0], part[1]) for part in parts.values() if len(part) > 2}
    shown: dict[str, str] = {}
    for name, part in parts.items():
        words = [f"rank {part[0]}"] if len(ranks) > 1 else []
        if len(part) > 2 and len(devices) > len(ranks):
            words.append(_spaced(part[1]))
        words.append(_spaced(part[-1]))
        shown[name] = " ".join(words)
    return shown


def _spaced(word: str) -> str:
    return re.sub(r"^(stream|gpu)(\d+)$", r"\1 \2", word)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in _NUMBER.split(name)]
