"""How long a program holds its tensors."""

from __future__ import annotations

from typing import Any


class Lifetimes:
    """The storages of what runs, as long as Python's references and autograd hold them."""

    def __init__(self) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._weak: Any = StorageWeakRef
        self._numbers: dict[int, tuple[int, Any]] = {}
        """By address, which a weak reference keeps from being given again."""
        self._alive: dict[int, Any] = {}
        self.held: dict[int, int] = {}
        """Numbers of storages that are no more, to the last op that ran before."""

    def number(self, storage: Any) -> int:
        """From 1: 0 is what execution traces call none."""
        known = self._numbers.get(storage._cdata)
        if known is None:
            known = len(self._numbers) + 1, self._weak(storage)
            self._numbers[storage._cdata] = known
            self._alive[known[0]] = known[1]
        return known[0]

    def look(self, ops: int) -> None:
        """So many `ops` ran: what is no more has ended with the last of them."""
        for number in [n for n, storage in self._alive.items() if storage.expired()]:
            del self._alive[number]
            self.held[number] = ops - 1

    def insert(self, first: int) -> None:
        """An op stands before what was op `first`."""
        self.held = {number: at + (at >= first) for number, at in self.held.items()}
