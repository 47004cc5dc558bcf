"""Sizes that a graph does not state and the ops around a call suggest.

Old profiles record no shapes of lists of tensors, nor of collectives. What is filled in here is
marked (`attributes["guessed"]`), and so are the pieces that it becomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from perfmodel.graph.opgraph.collectives import collective_of
from perfmodel.graph.ops import NO_OP, Op, Tensor
from perfmodel.lowering.rules.collectives import KNOWN

GUESSED = "guessed"
AHEAD, BACK = 200, 12
"""How many ops may lie between a call and the one that tells its size."""
LISTS = ("aten::cat", "aten::_cat", "aten::stack")
SPLITS = ("SplitWithSizesBackward", "SplitBackward")
COLLECTIVE = "record_param_comms"
GRADIENT = "torch::autograd::AccumulateGrad"
ALL_REDUCE = "all_reduce"


def with_guesses(ops: list[Op], world_size: int) -> None:
    """Fill in, in place, the outputs of concatenations and the sizes of collectives."""
    gradients = 0
    for index, op in enumerate(ops):
        if op.name == GRADIENT:
            gradients += sum(prod(t.shape) for t in op.tensors[:1])
        elif op.name in LISTS and not op.tensors and not op.outputs:
            made = _concatenated(ops, index)
            if made is not None:
                ops[index] = replace(op, outputs=(made,), attributes=_marked(op, {}))
        elif op.attributes.get("collective") == ALL_REDUCE and GUESSED in op.attributes:
            gradients = 0
        elif op.name == COLLECTIVE and not ("in_elements" in op.attributes or _waits(op)):
            word = _word(ops, index)
            if word is None:
                continue
            about = {"collective": word, "group_size": str(world_size)}
            given = _given(ops, index)
            elements = prod(given.shape) if given is not None else 0
            if word == ALL_REDUCE:
                elements, gradients = max(elements, gradients), 0
            if elements:
                about |= {"in_elements": str(elements), "out_elements": str(elements)}
                about["dtype"] = given.dtype if given is not None else "fp32"
            ops[index] = replace(op, attributes=_marked(op, about))


def _waits(op: Op) -> bool:
    return op.attributes.get("collective") == "wait"


def _marked(op: Op, about: dict[str, str]) -> dict[str, str]:
    return {**op.attributes, **about, GUESSED: "1"}


def _concatenated(ops: Sequence[Op], index: int) -> Tensor | None:
    """What a concatenation made: all that a split's backward was given, else what is read next."""
    op = ops[index]
    caller = ops[op.parent] if op.parent != NO_OP else None
    if caller is not None and caller.name.startswith(SPLITS) and caller.tensors:
        parts = caller.tensors
        return Tensor((sum(prod(t.shape) for t in parts),), parts[0].dtype)
    following = range(index + 1, min(index + AHEAD, len(ops)))
    read = next(_tensors(ops, following, index), None)
    return Tensor(read.shape, read.dtype) if read is not None else None


def _given(ops: Sequence[Op], index: int) -> Tensor | None:
    """What a collective was given: its own tensor, its caller's, or what was touched last."""
    op = ops[index]
    caller = ops[op.parent] if op.parent != NO_OP else None
    for known in (op, caller):
        if known is not None and known.tensors:
            return known.tensors[0]
    return next(_tensors(ops, range(index - 1, max(index - BACK, -1), -1), index), None)


def _tensors(ops: Sequence[Op], places: range, index: int) -> Iterator[Tensor]:
    """First tensors of ops of the same thread that `index` does not call; none of one element."""
    for place in places:
        other = ops[place]
        if other.thread == ops[index].thread and other.parent != index and other.tensors:
            first = other.tensors[0]
            if prod(first.shape) > 1:
                yield first


def _word(ops: Sequence[Op], index: int) -> str | None:
    """Which collective it is, by the names of its callers and the annotation around it."""
    op = ops[index]
    names = [op.attributes.get("collective", ""), op.attributes.get("annotation", "")]
    while op.parent != NO_OP:
        op = ops[op.parent]
        names.append(op.name)
    words = (collective_of(name.replace("2", "to")) for name in names)
    return next((word for word in words if word in KNOWN), None)
