"""Ops taken out of a graph; what depended on them depends on their producers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.graph import NO_OP, Op, OpGraph


class Edited(NamedTuple):
    """The graph after an edit, and what of it could not be done, in words."""

    graph: OpGraph
    skipped: tuple[str, ...] = ()


def remove(graph: OpGraph, pattern: str) -> Edited:
    """`graph` without the ops whose name fits `pattern` (`aten::dropout*`), and what they call.

    Calls of an op that stays which are gone are remembered (`removed`).
    """
    gone: set[int] = set()
    for at, op in enumerate(graph.ops):  # callers stand before what they call
        if op.parent in gone or fnmatchcase(op.name, pattern):
            gone.add(at)
    if not gone:
        return Edited(graph, (f"no op is called {pattern}",))
    kept = [at for at in range(len(graph)) if at not in gone]
    new_of = {old: new for new, old in enumerate(kept)}
    ops = [graph.ops[at] for at in kept]
    edited = replace(
        graph,
        ops=tuple(replace(op, parent=new_of.get(op.parent, NO_OP)) for op in ops),
        data=_between(graph.data, new_of),
        waits=None if graph.waits is None else _between(graph.waits, new_of),
        removed=_removed(graph, new_of),
        held={},
        notes=(*graph.notes, f"{len(gone)} ops removed ({pattern})"),
    )
    return Edited(edited)


def _removed(graph: OpGraph, new_of: Mapping[int, int]) -> tuple[Op, ...]:
    """What the ops that stay called in `graph`, or before, and call no more."""
    removed: list[Op] = []
    place: dict[int, int] = {}
    for old, op in enumerate((*graph.ops, *graph.removed)):
        above = place.get(op.parent, new_of.get(op.parent))
        if old not in new_of and above is not None:
            place[old] = len(new_of) + len(removed)
            removed.append(replace(op, parent=above))
    return tuple(removed)


def _between(edges: NDArray[np.int64], new_of: Mapping[int, int]) -> NDArray[np.int64]:
    """Dependencies by new indices, those through ops that are gone joined."""
    between: set[tuple[int, int]] = set()
    producers: defaultdict[int, list[int]] = defaultdict(list)
    for producer, consumer in sorted(edges.tolist(), key=lambda edge: edge[1]):
        sources = [producer] if producer in new_of else producers[producer]
        if consumer in new_of:
            between.update((new_of[source], new_of[consumer]) for source in sources)
        else:
            producers[consumer] += [s for s in sources if s not in producers[consumer]]
    return np.array(sorted(between), np.int64).reshape(-1, 2)
