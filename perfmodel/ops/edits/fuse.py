"""Several ops as one: elementwise chains, and the lookups of a model's tables.

Source: Lin et al. 2022, section on co-design (fused embedding lookups); FBGEMM's operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble, keep_ops, subtree, subtrees
from perfmodel.ops.edits.optimizers import kind_of
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
    Tensor,
    tensors_in,
)
from perfmodel.ops.operators import is_elementwise

MASKED = ("aten::masked_fill", "aten::masked_fill_")
"""Elementwise too, by way of a copy."""


def is_fusible(op: Op) -> bool:
    """Whether one kernel could do an op with those beside it."""
    return is_elementwise(op.name) or op.name in MASKED


def fuse_elementwise(graph: OpGraph) -> Edited:
    """Neighbouring elementwise calls, each reading what the one before made, as one `triton::` op.

    Its inputs are what the chain reads from outside, then what is read of it afterwards, or its
    last output. Calls of the autograd engine are apart, and are not fused.
    """
    children = graph.children()
    gone: set[int] = set()
    made: dict[int, PlacedOp] = {}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for producer, consumer in graph.data.tolist():
        readers[producer].add(consumer)
    chains = list(_chains(graph, children))
    for chain in chains:
        covered = [at for index in chain for at in subtree(children, index)]
        gone.update(covered)
        op = _fused(graph, chain, set(covered), readers)
        made[chain[-1]] = PlacedOp(op, tuple(covered))
    if not made:
        return Edited(graph, ("no elementwise ops follow one another",))
    placed = [
        made[at] if at in made else keep_ops(graph, [at])[0]
        for at in range(len(graph))
        if at in made or at not in gone
    ]
    apart = sum(is_fusible(op) and op.phase == BACKWARD for op in graph.ops)
    skipped = (f"{apart} elementwise ops of the backward pass stay apart",) if apart else ()
    calls = sum(map(len, chains))
    note = f"{calls} elementwise ops fused into {len(made)}"
    return Edited(assemble(graph, placed, note), skipped)


def _chains(graph: OpGraph, children: list[list[int]]) -> Iterator[list[int]]:
    """Runs of two and more, in order."""
    for siblings in [list(graph.top_level()), *children]:
        run: list[int] = []
        for index in siblings:
            op = graph.ops[index]
            if run and not _follows(graph.ops[run[-1]], op):
                if len(run) > 1:
                    yield run
                run = []
            if is_fusible(op):
                run.append(index)
        if len(run) > 1:
            yield run


def _follows(before: Op, op: Op) -> bool:
    """Whether an elementwise op reads what another one made, or may have."""
    if not is_fusible(op) or (op.thread, op.step, op.phase) != (
        before.thread,
        before.step,
        before.phase,
    ):
        return False
    made = list(tensors_in(before.outputs)) or list(before.tensors[:1])
    ids = {tensor.tensor_id for tensor in made} - {-1}
    if ids:
        return any(tensor.tensor_id in ids for tensor in op.tensors)
    return any(tensor.shape == made[0].shape for tensor in op.tensors) if made else False


def _fused(graph: OpGraph, chain: list[int], covered: set[int], readers: dict[int, set[int]]) -> Op:
    ops = [graph.ops[index] for index in chain]
    inside = {tensor.tensor_id for op in ops for tensor in tensors_in(op.outputs)} - {-1}
    read: dict[Tensor, None] = {}
    for at, op in enumerate(ops):
        for tensor in op.tensors:
            is_made = tensor.tensor_id in inside and at
            is_like = at and tensor.tensor_id < 0 and tensor.shape == ops[at - 1].tensors[0].shape
            if not is_made and not is_like:
                read.setdefault(tensor)
    used = [
        tensor
        for index in chain[:-1]
        if readers[index] - covered
        for tensor in tensors_in(graph.ops[index].outputs)
    ]
    last = list(tensors_in(ops[-1].outputs)) or list(ops[-1].tensors[:1])
    written = tuple(dict.fromkeys((*used, *last)))
    names = "_".join(op.name.removeprefix("aten::") for op in ops)
    return replace(
        ops[-1], name=f"triton::fused_{names}", inputs=(*read, *written), outputs=written
    )


_LOOKUP = "aten::embedding_bag"
_BACKWARD = f"{AUTOGRAD_NODE}EmbeddingBagBackward0"
_ACCUMULATE = f"{AUTOGRAD_NODE}torch::autograd::AccumulateGrad"
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
    optimizer = _FUSED_OPTIMIZERS.get(kind_of(graph, step), "sgd")
    lookup, pooled = _lookup(graph, calls, optimizer)
    forward = subtrees(graph, calls)
    made[calls[-1]] = [PlacedOp(lookup, tuple(sorted(forward)))]
    gone |= forward
    own = [at for at in range(calls[-1], len(ops)) if ops[at].step == step]
    backward = [at for at in own if ops[at].name == _BACKWARD]
    is_table = _Tables(weights)
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
            shrunk[at] = replace(op, inputs=tuple(_only(item, stays) for item in op.inputs))


class _Tables:
    """Whether a tensor is one of the tables, or a gradient or state of one."""

    def __init__(self, weights: list[Tensor]) -> None:
        self._storages = {tensor.storage_id for tensor in weights} - {-1}
        self._shapes = {tensor.shape for tensor in weights}

    def __call__(self, tensor: Tensor) -> bool:
        if self._storages and tensor.storage_id >= 0 and tensor.shape in self._shapes:
            return tensor.storage_id in self._storages or tensor.layout == "sparse"
        return tensor.shape in self._shapes


def _only(item: Argument, stays: list[bool]) -> Argument:
    """A list of tensors without those of the tables."""
    if isinstance(item, tuple) and len(item) == len(stays):
        return tuple(one for one, stay in zip(item, stays, strict=True) if stay)
    return item


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


KINDS = {"embeddings": fuse_tables, "elementwise": fuse_elementwise}


def fuse(graph: OpGraph, kind: str) -> Edited:
    """`graph` with its `embeddings` (lookups of all tables) or `elementwise` chains fused.

    Raises `WorkloadError` for another kind.
    """
    if kind not in KINDS:
        raise WorkloadError(f"cannot fuse {kind!r}; one of {', '.join(KINDS)}")
    return KINDS[kind](graph)
