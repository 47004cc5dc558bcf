"""How far long work is: what it calls as it goes.

Functions that take long call a `Begin` before each part of their work; whoever calls them shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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
