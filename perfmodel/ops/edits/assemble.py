"""A graph put together anew: ops dropped, the lookups of a model's tables as one.

Source: Lin et al. 2022, section on co-design (fused embedding lookups); FBGEMM's operators.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.graph import AUTOGRAD_NODE, NO_OP, OPTIMIZER, Op, OpGraph, Tensor, tensors_in


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
        held={},
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
    members, waiting = [], [index]
    while waiting:
        at = waiting.pop()
        members.append(at)
        waiting += reversed(children[at])
    return members


def subtrees(graph: OpGraph, roots: Iterable[int]) -> set[int]:
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


_LOOKUP = "aten::embedding_bag"
_BACKWARD = f"{AUTOGRAD_NODE}EmbeddingBagBackward0"
_ACCUMULATE = f"{AUTOGRAD_NODE}torch::autograd::AccumulateGrad"
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED_OPTIMIZERS = {"sgd": "sgd", "adagrad": "adagrad", "adam": "adam", "adamw": "adam"}


def fuse_tables(graph: OpGraph) -> Edited:
    """Every step's `embedding_bag` calls as one lookup, with one backward that updates the tables.

    The lookup stands where the last call stood, the backward where the first one stood; gradients
    of the tables are neither accumulated nor given to the optimizer. Preparing each table's indices
    stays, and so does putting the results side by side.
    """
    by_step: defaultdict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        if op.name == _LOOKUP:
            by_step[op.step].append(index)
    groups = [calls for calls in by_step.values() if len(calls) > 1]
    if not groups:
        return Edited(graph, (f"no step has several calls of {_LOOKUP}",))
    made: dict[int, list[PlacedOp]] = {}
    gone: set[int] = set()
    shrunk: dict[int, Op] = {}
    for calls in groups:
        _fuse_step(graph, calls, made, gone, shrunk)
    placed = []
    for index in range(len(graph)):
        placed += made.get(index, [])
        if index in shrunk:
            placed.append(PlacedOp(shrunk[index], (index,)))
        elif index not in gone:
            placed += keep_ops(graph, [index])
    tables = len(groups[0])
    note = f"{tables} embedding lookups per step fused into one"
    skipped = ["preparing each table's indices stays", "the lookups' results are still stacked"]
    if not any(graph.ops[at].name == _BACKWARD for at in gone):
        skipped.append("no backward of the lookups was found")
    return Edited(assemble(graph, placed, note), tuple(skipped))


def _fuse_step(
    graph: OpGraph,
    calls: list[int],
    made: dict[int, list[PlacedOp]],
    gone: set[int],
    shrunk: dict[int, Op],
) -> None:
    step, ops = graph.ops[calls[0]].step, graph.ops
    weights = [ops[at].tensors[0] for at in calls]
    optimizer = _FUSED_OPTIMIZERS.get(_optimizer_of(graph, step), "sgd")
    lookup, pooled = _lookup(graph, calls, optimizer)
    forward = subtrees(graph, calls)
    made[calls[-1]] = [PlacedOp(lookup, tuple(sorted(forward)))]
    gone |= forward
    own = [at for at in range(calls[-1], len(ops)) if ops[at].step == step]
    backward = [at for at in own if ops[at].name == _BACKWARD]
    storages, shapes = ({getattr(t, name) for t in weights} for name in ("storage_id", "shape"))

    def is_table(tensor: Tensor) -> bool:
        """Whether a tensor is one of the tables, or a gradient or state of one."""
        is_known = storages != {-1} and tensor.storage_id >= 0 and tensor.layout != "sparse"
        return tensor.shape in shapes and (not is_known or tensor.storage_id in storages)

    if backward:
        first = ops[backward[0]]
        node = f"torch::autograd::CppNode<SplitLookupFunction_{optimizer}_Op_pt2>"
        covered = tuple(sorted(subtrees(graph, backward)))
        gone |= set(covered)
        wrapper = PlacedOp(replace(first, name=f"{AUTOGRAD_NODE}{node}"), covered)
        inner = PlacedOp(
            replace(first, name=node, inputs=(pooled,), outputs=(), parent=covered[0]), ()
        )
        made[backward[0]] = [wrapper, inner]
    accumulated = [
        at
        for at in own
        if ops[at].name == _ACCUMULATE
        and any(map(is_table, tensors_in(tuple(ops[i].inputs for i in subtrees(graph, [at])))))
    ]
    gone |= subtrees(graph, accumulated)
    for at in own:
        op = ops[at]
        if op.phase != OPTIMIZER or op.parent != NO_OP or at in gone:
            continue
        lists = [item for item in op.inputs if isinstance(item, tuple) and tuple(tensors_in(item))]
        if op.tensors and isinstance(op.inputs[0], Tensor) and is_table(op.inputs[0]):
            gone |= subtrees(graph, [at])
        elif lists and any(map(is_table, tensors_in(lists[0]))):
            stays = [not is_table(tensor) for tensor in tensors_in(lists[0])]
            shrunk[at] = replace(
                op,
                inputs=tuple(
                    tuple(compress(item, stays))
                    if isinstance(item, tuple) and len(item) == len(stays)
                    else item
                    for item in op.inputs
                ),
            )


def _lookup(graph: OpGraph, calls: list[int], optimizer: str) -> tuple[Op, Tensor]:
    """The call of all tables together, with FBGEMM's arguments, and what it returns."""
    last = graph.ops[calls[-1]]
    given = [graph.ops[at].tensors for at in calls]
    weights = [tensors[0] for tensors in given]
    rows = sum(tensor.shape[0] for tensor in weights)
    dims = [tensor.shape[1] for tensor in weights]
    bags = next((t.shape[0] for t in tensors_in(last.outputs)), given[-1][2].shape[0])
    elements = sum(tensor.elements for tensor in weights)
    place, tables = weights[0].device, len(calls)
    pooled = Tensor((bags, sum(dims)), weights[0].dtype, device=place)
    held = replace(weights[0], shape=(elements,), strides=())
    indices = Tensor((sum(tensors[1].elements for tensors in given),), "int64", device=place)
    offsets = Tensor((tables * bags + 1,), "int64", device=place)
    nothing, placements = Tensor((0,), device=place), Tensor((tables,), "int64", device=place)
    op = replace(
        last,
        name=f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function_pt2",
        inputs=(
            nothing,
            (held, placements, placements),
            Tensor((tables + 1,), "int32", device=place),
            sum(dims),
            max(dims),
            Tensor((tables + 1,), "int64", device=place),
            rows.bit_length(),
            indices,
            offsets,
            0,
        ),
        outputs=(pooled,),
        attributes={k: v for k, v in last.attributes.items() if k == "annotation"},
    )
    return op, pooled


def _optimizer_of(graph: OpGraph, step: int) -> str:
    """`sgd adagrad adam adamw …`: what the annotations of a step call its optimizer, or ''."""
    for op in graph.ops:
        if op.phase == OPTIMIZER and op.step == step:
            match = _STEP.search(op.attributes.get("annotation", ""))
            if match:
                return match[1].lower().removeprefix("fused")
    return ""
