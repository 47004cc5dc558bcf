"""How long a program holds its tensors."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

SELDOM = 32
"""What has been there for more than so many looks is looked at again after that part of its age:
at each look all would cost the square of a long program."""


class Lifetimes:
    """The storages of what runs, as long as Python's references and autograd hold them."""

    def __init__(self) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._weak: Any = StorageWeakRef
        self._numbers: dict[int, tuple[int, Any]] = {}
        """By address, which a weak reference keeps from being given again."""
        self._looks = 0
        self._alive: list[tuple[int, int, int, Any]] = []
        """A heap: when to look again, number, when it was new, reference."""
        self.held: dict[int, int] = {}
        """Numbers of storages that are no more, to the last op that ran before."""

    def number(self, storage: Any) -> int:
        """From 1: 0 is what execution traces call none."""
        known = self._numbers.get(storage._cdata)
        if known is None:
            known = len(self._numbers) + 1, self._weak(storage)
            self._numbers[storage._cdata] = known
            heappush(self._alive, (self._looks, known[0], self._looks, known[1]))
        return known[0]

    def look(self, ops: int) -> None:
        """So many `ops` ran: what is no more has ended with the last of them."""
        self._looks += 1
        while self._alive and self._alive[0][0] < self._looks:
            _, number, begun, storage = heappop(self._alive)
            if storage.expired():
                self.held[number] = ops - 1
            else:
                again = self._looks + (self._looks - begun) // SELDOM
                heappush(self._alive, (again, number, begun, storage))

    def insert(self, first: int) -> None:
        """An op stands before what was op `first`."""
        for number, at in reversed(self.held.items()):
            if at < first:
                break
            self.held[number] = at + 1
