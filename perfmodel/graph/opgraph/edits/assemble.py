"""A graph put together anew: ops dropped, added, merged or in another order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import NO_OP, Op, OpGraph


@dataclass(frozen=True)
class Placed:
    """An op in its new place; `parent` still counts as in the old graph.

    `covers`: old indices of the ops that it stands for; their dependencies become its own.
    """

    op: Op
    covers: tuple[int, ...] = ()


def kept(graph: OpGraph, indices: Iterable[int]) -> list[Placed]:
    """The ops at `indices` as they are."""
    return [Placed(graph.ops[index], (index,)) for index in indices]


def assembled(graph: OpGraph, placed: Sequence[Placed], note: str) -> OpGraph:
    """The graph of `placed`, in that order; what depended on a dropped op depends on its producers.

    Calls of an op that stays which are dropped, or placed elsewhere, are remembered (`removed`).
    `note` is added to the graph's.
    """
    new_of = {old: at for at, one in enumerate(placed) for old in one.covers}
    ops = tuple(replace(one.op, parent=new_of.get(one.op.parent, NO_OP)) for one in placed)
    return replace(
        graph,
        ops=ops,
        data=_between(graph.data, new_of),
        waits=None if graph.waits is None else _between(graph.waits, new_of),
        removed=_removed(graph, placed, new_of),
        notes=(*graph.notes, note),
    )


def _removed(graph: OpGraph, placed: Sequence[Placed], new_of: Mapping[int, int]) -> tuple[Op, ...]:
    """What the ops that stay called in `graph`, or before, and call no more."""
    stays = {one.covers[0]: at for at, one in enumerate(placed) if len(one.covers) == 1}
    found: list[Op] = []
    place: dict[int, int] = {}
    for old, op in enumerate((*graph.ops, *graph.removed)):
        is_there = old in stays and placed[stays[old]].op.parent == op.parent
        if op.parent in place:
            above = place[op.parent]
        elif op.parent in stays and not is_there:
            above = stays[op.parent]
        else:
            continue
        place[old] = len(placed) + len(found)
        found.append(replace(op, parent=above))
    return tuple(found)


def _between(edges: NDArray[np.int64], new_of: Mapping[int, int]) -> NDArray[np.int64]:
    """Dependencies by new indices, those through ops that are gone joined."""
    found: set[tuple[int, int]] = set()
    producers: defaultdict[int, list[int]] = defaultdict(list)
    for producer, consumer in sorted(edges.tolist(), key=lambda edge: edge[1]):
        sources = [producer] if producer in new_of else producers[producer]
        if consumer in new_of:
            found.update((new_of[source], new_of[consumer]) for source in sources)
        else:
            producers[consumer] += [s for s in sources if s not in producers[consumer]]
    table = np.array(sorted(edge for edge in found if edge[0] != edge[1]), np.int64)
    return table.reshape(-1, 2)


def subtree(children: Sequence[Sequence[int]], index: int) -> list[int]:
    """An op and all that it calls, in program order."""
    found, waiting = [], [index]
    while waiting:
        at = waiting.pop()
        found.append(at)
        waiting += reversed(children[at])
    return found


def subtrees(graph: OpGraph, roots: Iterable[int]) -> set[int]:
    """Ops and all that they call."""
    children = graph.children()
    return {index for root in roots for index in subtree(children, root)}
