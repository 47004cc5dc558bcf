"""What an op's own arguments do not tell, but the ops around it do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from perfmodel.graph.ops import NO_OP, Op, OpGraph, Tensor, tensors_in
from perfmodel.graph.told_lookups import with_told_lookups
from perfmodel.lowering.arguments import output, size
from perfmodel.lowering.guesses import with_guesses

LOOKUP_BACKWARD = "torch::autograd::CppNode<*Split*Lookup*Function*>"
LOOKUPS = ("fbgemm::*embedding*lookup*_function*",)
COLLECTIVE = "record_param_comms"
CONVOLUTIONS = ("aten::cudnn_convolution", "aten::miopen_convolution", "aten::mkldnn_convolution")
BACKWARD_PARTS = {
    f"aten::{library}_convolution_backward_{part}": f"aten::{library}_convolution_backward"
    for library in ("cudnn", "miopen")
    for part in ("input", "weight")
}
"""Parts of a convolution's backward, to the call around them (before PyTorch 1.10)."""
AHEAD = 60
"""How many ops after a convolution may pass until one reads its output."""


def self_contained(graph: OpGraph) -> OpGraph:
    """`graph` whose ops state all that the ops around them tell (see `completed`): an edit of one
    of them then leaves what is known of the others."""
    return replace(graph, ops=tuple(completed(graph)))


def completed(graph: OpGraph) -> list[Op]:
    """The ops of a graph, some with more arguments, outputs or attributes than it states.

    The backward of a table-batched embedding gets the arguments of its forward behind its
    gradient, and the forward its output; a convolution whose output is not recorded, the first
    tensor that fits of those that later ops read; the parts of its backward, the arguments of the
    whole; a collective, what its caller says of it; what touches rows that were looked up, how many
    they are. Then come guesses (`guesses.with_guesses`).
    """
    ops = with_told_lookups(graph.ops)
    for forward, backward, pooled in _lookups(graph):
        ops[backward] = replace(ops[backward], inputs=(pooled, *ops[forward].inputs))
        if output(ops[forward]) is None:
            ops[forward] = replace(ops[forward], outputs=(pooled,))
    for index, op in enumerate(graph.ops):
        if op.name == COLLECTIVE:
            ops[index] = _told_by_caller(op, graph)
        elif op.name in BACKWARD_PARTS and op.parent != NO_OP:
            whole = graph.ops[op.parent]
            if whole.name == BACKWARD_PARTS[op.name]:
                ops[index] = replace(op, inputs=whole.inputs)
        elif op.name in CONVOLUTIONS and output(op) is None:
            found = _read_later(graph, index)
            if found is not None:
                ops[index] = replace(op, outputs=(found,))
    with_guesses(ops, graph.world_size)
    return ops


def _lookups(graph: OpGraph) -> Iterator[tuple[int, int, Tensor]]:
    """(forward, backward, gradient of the output): the last forward that fits comes first."""
    kind: dict[str, str] = {}
    waiting: list[int] = []
    for index, op in enumerate(graph.ops):
        found = kind.get(op.name)
        if found is None:
            found = kind[op.name] = _lookup_kind(op.name)
        if found == "forward":
            waiting.append(index)
        elif found == "backward":
            pooled = next(tensors_in(op.inputs), None)
            if pooled is None:
                continue
            fits = (at for at in reversed(waiting) if _made(graph.ops[at], pooled))
            forward = next(fits, None)
            if forward is not None:
                waiting.remove(forward)
                yield forward, index, pooled


def _lookup_kind(name: str) -> str:
    if fnmatchcase(name, LOOKUP_BACKWARD):
        return "backward"
    return "forward" if any(fnmatchcase(name, pattern) for pattern in LOOKUPS) else "neither"


def _made(lookup: Op, pooled: Tensor) -> bool:
    """Whether a lookup may have returned a tensor like this: as its offsets have bags for it."""
    known = output(lookup)
    if known is not None:
        return known.shape == pooled.shape
    batch = pooled.shape[0] if pooled.shape else 0
    lengths = {size(t.shape) for t in lookup.tensors if len(t.shape) == 1}
    tables = {length - 1 for length in lengths}
    return any((t * batch + 1) in lengths for t in tables if t > 0)


def _told_by_caller(op: Op, graph: OpGraph) -> Op:
    if op.parent == NO_OP or "in_elements" in op.attributes or "collective" in op.attributes:
        return op
    caller = graph.ops[op.parent].attributes
    if "collective" not in caller:
        return op
    return replace(op, attributes={**op.attributes, **caller})


def _read_later(graph: OpGraph, index: int) -> Tensor | None:
    """The first tensor read after a convolution that has its batch and output channels."""
    op = graph.ops[index]
    tensors = op.tensors
    if len(tensors) < 2 or len(tensors[0].shape) < 3:
        return None
    values, weight = tensors[:2]
    lead = (values.shape[0], weight.shape[0])
    for later in graph.ops[index + 1 : index + AHEAD]:
        for found in later.tensors:
            same_rank = len(found.shape) == len(values.shape)
            if same_rank and found.shape[:2] == lead and found.shape != weight.shape:
                return found
    return None
