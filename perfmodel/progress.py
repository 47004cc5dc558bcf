"""How far long work is: what it calls as it goes, and how long it will still take.

Functions that take long call a `Begin` before each part of their work; whoever calls them shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

Begin: TypeAlias = Callable[[str, int, int], object]
"""Gets what begins, how much of the work is done by then, and how much there is in the same unit
(parts, rows); 0 and 0 where that is not known."""
Part = TypeVar("Part")


def silent(what: str, done: int, total: int) -> None:
    """The `Begin` of who shows nothing."""


def begun(
    parts: Collection[Part], begin: Begin, name: Callable[[Part], object] = str
) -> Iterator[Part]:
    """Each of `parts`, after `begin` was called with its `name`."""
    for position, part in enumerate(parts):
        begin(str(name(part)), position, len(parts))
        yield part


@dataclass
class Pace:
    """How fast a work of several stages goes on; a stage ends where `total` changes."""

    total: int = 0
    done: int = 0
    at_s: float = 0.0
    _from_done: int = 0
    _from_s: float = 0.0

    def reached(self, done: int, total: int, now_s: float) -> None:
        """At `now_s`, of any clock, `done` of `total` are done."""
        if total != self.total:
            self.total, self._from_done, self._from_s = total, done, now_s
        self.done, self.at_s = done, now_s

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the stage ends, if it goes on as it did; None where nothing tells."""
        gone, taken_s = self.done - self._from_done, self.at_s - self._from_s
        if gone <= 0 or taken_s <= 0.0:
            return None
        left_s = taken_s / gone * (self.total - self.done) - (now_s - self.at_s)
        return max(left_s, 0.0)

    def told(self, now_s: float) -> str:
        """As in `25 % done, about 3 min left`; empty where there is nothing to count."""
        if not self.total:
            return ""
        left_s = self.left_s(now_s)
        left = "" if left_s is None else f", about {_shown(left_s)} left"
        return f"{100 * self.done // self.total} % done{left}"


_MINUTE_S = 60


def _shown(seconds: float) -> str:
    """In minutes from two on."""
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE_S:.0f} min"
