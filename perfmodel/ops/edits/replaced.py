"""Ops of training replaced by others that do the same work: the lookups of all tables as one, an
optimizer's step in another of PyTorch's implementations.

Source: Lin et al. 2022, section on co-design (fused embedding lookups); FBGEMM's operators.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import compress

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble, keep_ops, subtrees
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
    Tensor,
    tensors_in,
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


MODES = ("loop", "foreach", "fused")
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
Calls = list[tuple[str, tuple[Argument, ...]]]
_LAST_UPDATE = ("aten::add_", "aten::addcdiv_", "aten::_foreach_add_", "aten::_foreach_addcdiv_")


def kind_of(graph: OpGraph, step: int) -> str:
    """`sgd adagrad adam adamw …`: what the annotations of a step call its optimizer, or ''."""
    for op in graph.ops:
        if op.phase == OPTIMIZER and op.step == step:
            match = _STEP.search(op.attributes.get("annotation", ""))
            if match:
                return match[1].lower().removeprefix("fused")
    return ""


def optimizer(graph: OpGraph, mode: str) -> Edited:
    """`graph` with each step's dense update as PyTorch's `loop`, `foreach` or `fused` has it.

    For SGD (with momentum), Adagrad, Adam and AdamW. Parameters with sparse gradients keep their
    ops. Raises `WorkloadError` for another `mode`.
    """
    if mode not in MODES:
        raise WorkloadError(f"optimizer {mode!r}; one of {', '.join(MODES)}")
    steps: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        is_update = "zero_grad" not in op.attributes.get("annotation", "")
        if op.phase == OPTIMIZER and op.parent == NO_OP and is_update:
            steps.setdefault(op.step, []).append(index)
    made: dict[int, list[PlacedOp]] = {}
    gone: set[int] = set()
    skipped: defaultdict[str, list[int]] = defaultdict(list)
    for step, indices in steps.items():
        dense = [at for at in indices if all(t.layout != "sparse" for t in graph.ops[at].tensors)]
        kind = kind_of(graph, step)
        names = {graph.ops[at].name for at in dense}
        usual = (m for m in MODES[:0:-1] if any(n.startswith(f"aten::_{m}_") for n in names))
        if next(usual, MODES[0]) == mode:
            skipped[f"the optimizer is {mode} already"].append(step)
            continue
        parameters = _parameters([graph.ops[at] for at in dense])
        if kind not in _UPDATES or not parameters:
            skipped[f"the optimizer {kind or '(not named)'} stays as it is"].append(step)
            continue
        sparse = len(indices) - len(dense)
        if sparse:
            skipped[f"{sparse} updates with sparse gradients stay as they are"].append(step)
        has_momentum = any(graph.ops[at].name.rstrip("_").endswith("mul") for at in dense)
        calls = _update(kind, parameters, mode, has_momentum)
        covered = tuple(sorted(subtrees(graph, dense)))
        gone |= set(covered)
        first = graph.ops[dense[0]]
        made[dense[0]] = [
            PlacedOp(replace(first, name=f"aten::{name}", inputs=inputs, outputs=()), ())
            for name, inputs in calls
        ]
        made[dense[0]][-1] = replace(made[dense[0]][-1], covers=covered)
    placed = []
    for index in range(len(graph)):
        placed += made.get(index, [])
        placed += [] if index in gone else keep_ops(graph, [index])
    said = tuple(
        f"step {of[0]}: {text}" if len(of) == 1 else f"{len(of)} steps: {text}"
        for text, of in skipped.items()
    )
    if not made:
        return Edited(graph, said or ("no op belongs to an optimizer",))
    return Edited(assemble(graph, placed, f"optimizer: {mode}"), said)


def _parameters(ops: list[Op]) -> list[Tensor]:
    """What a step's ops update, each once: first arguments of the last kind of update."""
    fused = [op for op in ops if op.name.startswith("aten::_fused_")]
    if fused:
        return [t for op in fused for t in tensors_in(op.inputs[0])]
    name = next((op.name for op in reversed(ops) if op.name in _LAST_UPDATE), "")
    tensors = [t for op in ops if op.name == name for t in tensors_in(op.inputs[:1])]
    on_device = [tensor for tensor in tensors if tensor.shape]
    named = {tensor.tensor_id: tensor for tensor in on_device}
    return on_device if -1 in named else list(named.values())


_ADAM = "lerp_ m g; mul_ s; addcmul_ s g g; sqrt s; div_ r; add_ r; addcdiv_ p m r"
_UPDATES = {
    "sgd": ("add_ p g", "p g"),
    "momentum": ("mul_ m; add_ m g; add_ p m", "p g m"),
    "adagrad": ("addcmul_ s g g; sqrt s; add_ r; addcdiv_ p g r", "p g s"),
    "adam": (_ADAM, "p g m s"),
    "adamw": (f"mul_ p; {_ADAM}", "p g m s"),
}
"""What an update calls, and is given as one: parameters, gradients, means, squares, roots."""


def _update(kind: str, parameters: list[Tensor], mode: str, has_momentum: bool) -> Calls:
    alike = tuple(replace(t, tensor_id=-1, storage_id=-1, strides=()) for t in parameters)
    given = dict.fromkeys("gmsr", alike) | {"p": tuple(parameters)}
    steps, whole = _UPDATES["momentum" if kind == "sgd" and has_momentum else kind]
    if mode == "fused":
        return [(f"_fused_{kind}_", tuple(given[name] for name in whole.split()))]
    calls = [(name, operands) for name, *operands in map(str.split, steps.split("; "))]
    if mode == "foreach":
        return [(f"_foreach_{name}", tuple(given[o] for o in operands)) for name, operands in calls]
    return [
        (name, tuple(given[operand][at] for operand in operands))
        for at in range(len(parameters))
        for name, operands in calls
    ]
