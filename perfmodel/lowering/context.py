"""What the ops around an op tell of it: arguments that it does not state, sizes that are guessed.

Old profiles record no shapes of lists of tensors, nor of collectives. What is filled in here is
marked (`attributes["guessed"]`), and so are the pieces that it becomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache

from perfmodel.lowering.arguments import output
from perfmodel.lowering.rules.copies import KNOWN
from perfmodel.ops.graph import NO_OP, Op, OpGraph, Tensor, tensors_in
from perfmodel.ops.lookups import TABLE_BATCHED, with_recorded_lookups
from perfmodel.ops.read.arguments import collective_of

LOOKUP_BACKWARD = "torch::autograd::CppNode<*Split*Lookup*Function*>"
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
    """`graph` whose ops state all that the ops around them tell: an edit of one of them then leaves
    what is known of the others.

    The backward of a table-batched embedding gets the arguments of its forward behind its
    gradient, and the forward its output; a convolution whose output is not recorded, the first
    tensor that fits of those that later ops read; the parts of its backward, the arguments of the
    whole; a collective, what its caller says of it; what touches rows that were looked up, how many
    they are. Then come guesses (`with_guesses`).
    """
    ops = with_recorded_lookups(graph.ops)
    for forward, backward, pooled in _lookups(graph):
        ops[backward] = replace(ops[backward], inputs=(pooled, *ops[forward].inputs))
        if output(ops[forward]) is None:
            ops[forward] = replace(ops[forward], outputs=(pooled,))
    for index, op in enumerate(graph.ops):
        if op.name == COLLECTIVE:
            caller = graph.ops[op.parent].attributes if op.parent != NO_OP else {}
            if "collective" in caller and not {"in_elements", "collective"} & set(op.attributes):
                ops[index] = replace(op, attributes={**op.attributes, **caller})
        elif op.name in BACKWARD_PARTS and op.parent != NO_OP:
            whole = graph.ops[op.parent]
            if whole.name == BACKWARD_PARTS[op.name]:
                ops[index] = replace(op, inputs=whole.inputs)
        elif op.name in CONVOLUTIONS and output(op) is None:
            completed = _read_later(graph, index)
            if completed is not None:
                ops[index] = replace(op, outputs=(completed,))
    with_guesses(ops, graph.world_size)
    return replace(graph, ops=tuple(ops))


def _lookups(graph: OpGraph) -> Iterator[tuple[int, int, Tensor]]:
    """(forward, backward, gradient of the output): the last forward that fits comes first."""
    waiting: list[int] = []
    for index, op in enumerate(graph.ops):
        match = _lookup_kind(op.name)
        if match == "forward":
            waiting.append(index)
        elif match == "backward":
            pooled = next(tensors_in(op.inputs), None)
            if pooled is None:
                continue
            forward = None
            for at in reversed(waiting):  # as its output says, or its offsets, of bags for it
                known, tensors = output(graph.ops[at]), graph.ops[at].tensors
                lengths = {t.elements for t in tensors if len(t.shape) == 1}
                batch = pooled.shape[0] if pooled.shape else 0
                fits = any((t - 1) * batch + 1 in lengths for t in lengths if t > 1)
                if known.shape == pooled.shape if known is not None else fits:
                    forward = at
                    break
            if forward is not None:
                waiting.remove(forward)
                yield forward, index, pooled


@lru_cache(maxsize=1 << 14)
def _lookup_kind(name: str) -> str:
    if fnmatchcase(name, LOOKUP_BACKWARD):
        return "backward"
    return "forward" if any(fnmatchcase(name, pattern) for pattern in TABLE_BATCHED) else "neither"


def _read_later(graph: OpGraph, index: int) -> Tensor | None:
    """The first tensor read after a convolution that has its batch and output channels."""
    op = graph.ops[index]
    tensors = op.tensors
    if len(tensors) < 2 or len(tensors[0].shape) < 3:
        return None
    values, weight = tensors[:2]
    lead = (values.shape[0], weight.shape[0])
    for later in graph.ops[index + 1 : index + AHEAD]:
        for tensor in later.tensors:
            same_rank = len(tensor.shape) == len(values.shape)
            if same_rank and tensor.shape[:2] == lead and tensor.shape != weight.shape:
                return tensor
    return None


GUESSED = "guessed"
GUESS_AHEAD, GUESS_BACK = 200, 12
"""How many ops may lie between a call and the one that tells its size."""
LISTS = ("aten::cat", "aten::_cat", "aten::stack")
SPLITS = ("SplitWithSizesBackward", "SplitBackward")

GRADIENT = "torch::autograd::AccumulateGrad"
ALL_REDUCE = "all_reduce"


def with_guesses(ops: list[Op], world_size: int) -> None:
    """Fill in, in place, the outputs of concatenations and the sizes of collectives."""
    gradients = 0
    for index, op in enumerate(ops):
        if op.name == GRADIENT:
            gradients += sum(t.elements for t in op.tensors[:1])
        elif op.name in LISTS and not op.tensors and not op.outputs:
            # all that a split's backward was given, else what is read next
            caller = ops[op.parent] if op.parent != NO_OP else None
            following = range(index + 1, min(index + GUESS_AHEAD, len(ops)))
            made = next(_tensors(ops, following, index), None)
            if caller is not None and caller.name.startswith(SPLITS) and caller.tensors:
                elements = sum(t.elements for t in caller.tensors)
                made = Tensor((elements,), caller.tensors[0].dtype)
            if made is not None:
                made = Tensor(made.shape, made.dtype)
                about = {**op.attributes, GUESSED: "1"}
                ops[index] = replace(op, outputs=(made,), attributes=about)
        elif op.attributes.get("collective") == ALL_REDUCE and GUESSED in op.attributes:
            gradients = 0
        elif op.name == COLLECTIVE and not (
            "in_elements" in op.attributes or op.attributes.get("collective") == "wait"
        ):
            above, names = op, [op.attributes.get(key, "") for key in ("collective", "annotation")]
            while above.parent != NO_OP:
                above = ops[above.parent]
                names.append(above.name)
            words = (collective_of(name.replace("2", "to")) for name in names)
            word = next((word for word in words if word in KNOWN), None)
            if word is None:
                continue
            about = {"collective": word, "group_size": str(world_size)}
            given = _given(ops, index)
            elements = given.elements if given is not None else 0
            if word == ALL_REDUCE:
                elements, gradients = max(elements, gradients), 0
            if elements:
                about |= {"in_elements": str(elements), "out_elements": str(elements)}
                about["dtype"] = given.dtype if given is not None else "fp32"
            ops[index] = replace(op, attributes={**op.attributes, **about, GUESSED: "1"})


def _given(ops: Sequence[Op], index: int) -> Tensor | None:
    """What a collective was given: its own tensor, its caller's, or what was touched last."""
    op = ops[index]
    caller = ops[op.parent] if op.parent != NO_OP else None
    for known in (op, caller):
        if known is not None and known.tensors:
            return known.tensors[0]
    return next(_tensors(ops, range(index - 1, max(index - GUESS_BACK, -1), -1), index), None)


def _tensors(ops: Sequence[Op], places: range, index: int) -> Iterator[Tensor]:
    """First tensors of ops of the same thread that `index` does not call; none of one element."""
    for place in places:
        other = ops[place]
        if other.thread == ops[index].thread and other.parent != index and other.tensors:
            first = other.tensors[0]
            if first.elements > 1:
                yield first
