"""Rows that call one another: the last that each called, what each reads of what others wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfmodel.base.arrays import Ints


def subtree_last(above: Sequence[int]) -> Ints:
    """`[N]`: for each row the highest row that it called, directly or not (itself, for a leaf), of
    the row that called each (-1 for none)."""
    last = [-1] * len(above)
    for highest in range(len(above) - 1, -1, -1):
        row = highest
        while row != -1 and last[row] == -1:
            last[row] = highest
            row = above[row]
    return np.array(last, np.int64)


def last_writers(
    above: Sequence[int],
    thread: Sequence[int],
    reads: Iterable[Iterable[int]],
    writes: Mapping[int, Iterable[int]],
) -> Ints:
    """`[E, 2]`, by consumer: the row that wrote a key last, and one that reads it. A row reads when
    it is called and writes when it returns, less what a row that it called has written."""
    last = subtree_last(above).tolist()
    returning = sorted(writes, key=lambda row: (-last[row], row))
    writer: dict[int, int] = {}
    edges: list[tuple[int, int]] = []
    for row, keys in enumerate(reads):
        while returning and last[returning[-1]] < row:
            op = returning.pop()
            for key in writes[op]:
                before = writer.get(key, op)
                if before <= op or thread[before] != thread[op]:
                    writer[key] = op
        sources = {writer[key] for key in keys if key in writer}
        edges += [(source, row) for source in sorted(sources)]
    return np.array(edges, np.int64).reshape(-1, 2)
