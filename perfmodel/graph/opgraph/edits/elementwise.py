"""Chains of elementwise ops as one kernel each, as a compiler would make them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from perfmodel.graph.opgraph.edits.assemble import Placed, assembled, kept, subtree
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import BACKWARD, Op, OpGraph, Tensor, tensors_in

_NAMES = frozenset(
    f"aten::{name}{ending}"
    for name in (
        *("relu", "gelu", "silu", "sigmoid", "tanh", "elu", "leaky_relu", "hardswish", "softplus"),
        *("add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "log", "log1p", "sqrt", "rsqrt"),
        *("pow", "square", "reciprocal", "clamp", "clamp_min", "clamp_max", "threshold", "where"),
        *("addcmul", "addcdiv", "lerp", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"),
        *("masked_fill", "sin", "cos", "erf", "sign", "logical_and", "logical_or", "bitwise_and"),
        *("threshold_backward", "sigmoid_backward", "tanh_backward", "gelu_backward"),
        *("silu_backward", "native_dropout", "dropout"),
    )
    for ending in ("", "_")
)


def fuse_elementwise(graph: OpGraph) -> Edited:
    """Neighbouring elementwise calls, each reading what the one before made, as one `triton::` op.

    Its inputs are what the chain reads from outside, then what is read of it afterwards, or its
    last output. Calls of the autograd engine are apart, and are not fused.
    """
    children = graph.children()
    gone: set[int] = set()
    made: dict[int, Placed] = {}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for producer, consumer in graph.data.tolist():
        readers[producer].add(consumer)
    chains = list(_chains(graph, children))
    for chain in chains:
        covered = [at for index in chain for at in subtree(children, index)]
        gone.update(covered)
        op = _fused(graph, chain, set(covered), readers)
        made[chain[-1]] = Placed(op, tuple(covered))
    if not made:
        return Edited(graph, ("no elementwise ops follow one another",))
    placed = [
        made[at] if at in made else kept(graph, [at])[0]
        for at in range(len(graph))
        if at in made or at not in gone
    ]
    apart = sum(op.name in _NAMES and op.phase == BACKWARD for op in graph.ops)
    undone = (f"{apart} elementwise ops of the backward pass stay apart",) if apart else ()
    calls = sum(map(len, chains))
    note = f"{calls} elementwise ops fused into {len(made)}"
    return Edited(assembled(graph, placed, note), undone)


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
            if op.name in _NAMES:
                run.append(index)
        if len(run) > 1:
            yield run


def _follows(before: Op, op: Op) -> bool:
    """Whether an elementwise op reads what another one made, or may have."""
    if op.name not in _NAMES or (op.thread, op.step, op.phase) != (
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
