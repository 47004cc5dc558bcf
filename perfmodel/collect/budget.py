"""Which cases come first, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from perfmodel.collect.families import Case

T = TypeVar("T")
_SECONDS_PER_MINUTE = 60


def round_robin(sequences: Iterable[Sequence[T]]) -> Iterator[T]:
    """The first of each sequence, then the second of each, and so on until all are used up."""
    missing = object()
    for layer in zip_longest(*sequences, fillvalue=missing):
        for item in layer:
            if item is not missing:
                yield item  # type: ignore[misc]


def informative_order(families: dict[str, Sequence[Case]]) -> list[tuple[str, Case]]:
    """Cases with their family, so that every beginning of the list says most about all.

    All groups (op, dtype, direction, variant) take turns, so that each gets as many cases as any
    other; within a group the order is the family's own, and neighbours are of different families.
    """
    turns = []
    for name, cases in families.items():
        groups: dict[tuple[str, ...], list[tuple[str, Case]]] = {}
        for case in cases:
            groups.setdefault(case.group, []).append((name, case))
        turns.append(list(groups.values()))
    return list(round_robin(round_robin(turns)))


class Budget:
    """A time limit in minutes, counted from its making."""

    def __init__(self, minutes: float) -> None:
        self._end_s = time.monotonic() + minutes * _SECONDS_PER_MINUTE

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._end_s
