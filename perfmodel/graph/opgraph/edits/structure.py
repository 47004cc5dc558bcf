"""Ops removed, or moved to another place in the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from perfmodel.errors import WorkloadError
from perfmodel.graph.opgraph.edits.assemble import assembled, kept, subtree, subtrees
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import NO_OP, OpGraph


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
    return Edited(assembled(graph, kept(graph, rest), f"{len(gone)} ops removed ({pattern})"))


def move(graph: OpGraph, op: int | str, before: int | str) -> Edited:
    """`graph` with an op, and what it calls, directly before another; on that one's thread.

    Ops are named by index or by a pattern, of which the first fit counts. Before an op that another
    calls it stands before that other, unless that calls both. Raises `WorkloadError` where there is
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
        return Edited(graph, (f"{its.name} stands before {beside.name} already",))
    for producer, consumer in graph.data.tolist():
        late = consumer in among and target <= producer < source and producer not in among
        early = producer in among and source < consumer < target and consumer not in among
        if late or early:
            raise WorkloadError(
                f"{graph.ops[source].name} (op {source}) cannot stand before "
                f"{graph.ops[target].name} (op {target}): {graph.ops[consumer].name} (op "
                f"{consumer}) reads what {graph.ops[producer].name} (op {producer}) makes"
            )
    rest = [at for at in range(len(graph)) if at not in among]
    place = rest.index(target)
    thread, parent = graph.ops[target].thread, graph.ops[target].parent
    placed = kept(graph, [*rest[:place], *moved, *rest[place:]])
    for at, one in enumerate(placed):
        if one.covers[0] in among:
            above = parent if one.covers[0] == source else one.op.parent
            placed[at] = replace(one, op=replace(one.op, thread=thread, parent=above))
    note = f"{graph.ops[source].name} moved before {graph.ops[target].name}"
    return Edited(assembled(graph, placed, note))


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
    found = op if isinstance(op, int) else next(matching(graph, op), NO_OP)
    if not 0 <= found < len(graph):
        raise WorkloadError(f"{graph.source}: no op {op}")
    return found
