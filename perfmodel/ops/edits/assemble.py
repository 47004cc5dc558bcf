"""A graph put together anew: ops dropped, added, merged, moved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import NO_OP, Op, OpGraph


class Edited(NamedTuple):
    """The graph after an edit, and what of it could not be done, in words."""

    graph: OpGraph
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlacedOp:
    """An op in its new place; `parent` still counts as in the old graph.

    `covers`: old indices of the ops that it stands for; their dependencies become its own.
    """

    op: Op
    covers: tuple[int, ...] = ()


def keep_ops(graph: OpGraph, indices: Iterable[int]) -> list[PlacedOp]:
    """The ops at `indices` as they are."""
    return [PlacedOp(graph.ops[index], (index,)) for index in indices]


def assemble(graph: OpGraph, placed: Sequence[PlacedOp], note: str) -> OpGraph:
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


def _removed(
    graph: OpGraph, placed: Sequence[PlacedOp], new_of: Mapping[int, int]
) -> tuple[Op, ...]:
    """What the ops that stay called in `graph`, or before, and call no more."""
    stays = {one.covers[0]: at for at, one in enumerate(placed) if len(one.covers) == 1}
    removed: list[Op] = []
    place: dict[int, int] = {}
    for old, op in enumerate((*graph.ops, *graph.removed)):
        is_there = old in stays and placed[stays[old]].op.parent == op.parent
        if op.parent in place:
            above = place[op.parent]
        elif op.parent in stays and not is_there:
            above = stays[op.parent]
        else:
            continue
        place[old] = len(placed) + len(removed)
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
    table = np.array(sorted(edge for edge in between if edge[0] != edge[1]), np.int64)
    return table.reshape(-1, 2)


def subtree(children: Sequence[Sequence[int]], index: int) -> list[int]:
    """An op and all that it calls, in program order."""
    members, waiting = [], [index]
    while waiting:
        at = waiting.pop()
        members.append(at)
        waiting += reversed(children[at])
    return members


def subtrees(graph: OpGraph, roots: Iterable[int]) -> set[int]:
    """Ops and all that they call."""
    children = graph.children()
    return {index for root in roots for index in subtree(children, root)}


def matching(graph: OpGraph, pattern: str) -> Iterator[int]:
    """Indices of the ops whose name fits a pattern such as `aten::dropout*`."""
    return (at for at, op in enumerate(graph.ops) if fnmatchcase(op.name, pattern))


def remove(graph: OpGraph, pattern: str) -> Edited:
    """`graph` without the ops whose name fits `pattern`, and without what they call."""
    roots = list(matching(graph, pattern))
    if not roots:
        return Edited(graph, (f"no op is called {pattern}",))
    gone = subtrees(graph, roots)
    rest = [at for at in range(len(graph)) if at not in gone]
    return Edited(assemble(graph, keep_ops(graph, rest), f"{len(gone)} ops removed ({pattern})"))


def move(graph: OpGraph, op: int | str, before: int | str) -> Edited:
    """`graph` with an op, and what it calls, directly before another; on that one's thread.

    Ops are named by index or by a pattern, of which the first fit counts. Before an op that another
    calls it moves before that other, unless that calls both. Raises `WorkloadError` where there is
    none, and where the op would precede what makes its inputs, or follow what reads its outputs.
    """
    source, named = _index(graph, op), _index(graph, before)
    moved = subtree(graph.children(), source)
    if named in moved:
        raise WorkloadError(f"{graph.ops[source].name} calls {graph.ops[named].name}")
    target = _beside(graph, source, named)
    among = set(moved)
    its, beside = graph.ops[source], graph.ops[target]
    stays = set(range(source, target)) <= among and source < target
    if stays and (its.thread, its.parent) == (beside.thread, beside.parent):
        return Edited(graph, (f"{its.name} already runs before {beside.name}",))
    for producer, consumer in graph.data.tolist():
        late = consumer in among and target <= producer < source and producer not in among
        early = producer in among and source < consumer < target and consumer not in among
        if late or early:
            raise WorkloadError(
                f"{graph.ops[source].name} (op {source}) cannot move before "
                f"{graph.ops[target].name} (op {target}): {graph.ops[consumer].name} (op "
                f"{consumer}) reads what {graph.ops[producer].name} (op {producer}) makes"
            )
    rest = [at for at in range(len(graph)) if at not in among]
    place = rest.index(target)
    thread, parent = graph.ops[target].thread, graph.ops[target].parent
    placed = keep_ops(graph, [*rest[:place], *moved, *rest[place:]])
    for at, one in enumerate(placed):
        if one.covers[0] in among:
            above = parent if one.covers[0] == source else one.op.parent
            placed[at] = replace(one, op=replace(one.op, thread=thread, parent=above))
    note = f"{graph.ops[source].name} moved before {graph.ops[target].name}"
    return Edited(assemble(graph, placed, note))


def _beside(graph: OpGraph, source: int, named: int) -> int:
    """`named`, or the op around it that stands in a call of which `source` is a part as well."""
    around = {source}
    while source != NO_OP:
        source = graph.ops[source].parent
        around.add(source)
    while graph.ops[named].parent not in around:
        named = graph.ops[named].parent
    return named


def _index(graph: OpGraph, op: int | str) -> int:
    index = op if isinstance(op, int) else next(matching(graph, op), NO_OP)
    if not 0 <= index < len(graph):
        raise WorkloadError(f"{graph.source}: no op {op}")
    return index
