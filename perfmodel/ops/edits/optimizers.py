"""An optimizer's step in another of PyTorch's implementations."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble, keep_ops, subtrees
from perfmodel.ops.graph import NO_OP, OPTIMIZER, Argument, Op, OpGraph, Tensor, tensors_in

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
        if _mode_of([graph.ops[at] for at in dense]) == mode:
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


def _mode_of(ops: list[Op]) -> str:
    names = [op.name for op in ops]
    if any(name.startswith("aten::_fused_") for name in names):
        return "fused"
    return "foreach" if any(name.startswith("aten::_foreach_") for name in names) else "loop"


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


def _like(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients or states: the same sizes, other tensors."""
    return tuple(
        replace(t, tensor_id=-1, storage_id=-1, dtype=t.dtype, strides=()) for t in tensors
    )


def _per_tensor(calls: Calls) -> Calls:
    """Calls of lists as one call per member: `_foreach_add_` of lists as many `add_`."""
    count = len(next(tensors for tensors in calls[0][1] if isinstance(tensors, tuple)))
    return [
        (
            name.removeprefix("_foreach_"),
            tuple(item[at] if isinstance(item, tuple) else item for item in inputs),
        )
        for at in range(count)
        for name, inputs in calls
    ]


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
    given = {name: _like(parameters) for name in "gmsr"} | {"p": tuple(parameters)}
    steps, whole = _UPDATES["momentum" if kind == "sgd" and has_momentum else kind]
    if mode == "fused":
        return [(f"_fused_{kind}_", tuple(given[name] for name in whole.split()))]
    calls: Calls = [
        (f"_foreach_{name}", tuple(given[operand] for operand in operands))
        for name, *operands in map(str.split, steps.split("; "))
    ]
    return calls if mode == "foreach" else _per_tensor(calls)
