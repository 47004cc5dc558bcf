"""A graph put together anew: ops dropped, added, merged or in another order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import NO_OP, REMOVED, Op, OpGraph


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

    An op whose calls are dropped, or placed outside of it, says so (`REMOVED`). `note` is added to
    the graph's.
    """
    new_of = {old: at for at, one in enumerate(placed) for old in one.covers}
    ops = [replace(one.op, parent=new_of.get(one.op.parent, NO_OP)) for one in placed]
    for at, names in _no_longer_called(graph, placed, ops, new_of).items():
        before = ops[at].attributes.get(REMOVED, "").split(",")
        known = ",".join(sorted({*before, *names} - {""}))
        ops[at] = replace(ops[at], attributes={**ops[at].attributes, REMOVED: known})
    return replace(
        graph,
        ops=tuple(ops),
        data=_between(graph.data, new_of),
        waits=None if graph.waits is None else _between(graph.waits, new_of),
        notes=(*graph.notes, note),
    )


def _no_longer_called(
    graph: OpGraph, placed: Sequence[Placed], ops: Sequence[Op], new_of: Mapping[int, int]
) -> dict[int, set[str]]:
    """Per new op that stays: names of the ops that it called, directly or not, and calls no more."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for old, op in enumerate(graph.ops):
        at = new_of.get(old, NO_OP)
        if op.parent == NO_OP or (at != NO_OP and placed[at].op.parent == op.parent):
            continue
        around = {at}
        while at != NO_OP:
            at = ops[at].parent
            around.add(at)
        above = op.parent
        while above != NO_OP:
            if above in new_of and new_of[above] not in around:
                found[new_of[above]].add(op.name)
            above = graph.ops[above].parent
    return found


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
