"""`rebatch`: the same program at another batch, and products whose operands no longer fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from math import prod
from typing import TypeAlias

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited
from perfmodel.ops.edits.followed import Follower
from perfmodel.ops.edits.leaves import batch_of as batch_of
from perfmodel.ops.edits.leaves import first_operand
from perfmodel.ops.edits.returned import Batch, Shape, returned_by
from perfmodel.ops.graph import Argument, Op, OpGraph, Tensor, tensors_in

_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
_INDEXED = {"aten::select": 2, "aten::slice": 3, "aten::narrow": 3, "aten::arange": 1}
"""Position of an integer that may count samples: an index, an end, a length."""
_SPLITS = re.compile("split|all_?to_?all")
"""Ops whose lists of integers are parts of a dimension."""
_SHOWN = 5
Pairs: TypeAlias = list[tuple[Tensor, Tensor]]
"""Tensors as they were, and as they are."""


def rebatch(graph: OpGraph, batch: int, old: int | None = None) -> Edited:
    """`graph` at `batch` samples per rank; `old` is what it was recorded at, found if not given.

    The batch enters where a step's inputs do and is followed through every op: products of it
    (B*T, B*L, flattened) scale with it, parameters and their gradients do not. `skipped` says which
    ops have sizes that could be the batch's or not, and how many lengths were scaled in proportion.
    Raises `WorkloadError` for a batch below 1, where fixed parts of the batch do not come out
    whole, and for a matrix product whose operands no longer fit.
    """
    if type(batch) is not int or batch < 1:
        raise WorkloadError(f"batch {batch!r}: expected an integer of at least 1")
    old = batch_of(graph) if old is None else old
    found = Follower(graph, Batch(old, batch))
    ops = tuple(
        _resized(op, found.inputs[index], found.outputs[index])
        for index, op in enumerate(graph.ops)
    )
    unfit = list(_conflicts(graph, ops))
    if unfit and len(graph.data):
        raise WorkloadError(f"{graph.source}: batch {old} to {batch}: {unfit[0]}")
    skipped = [*unfit[:_SHOWN], *found.leaves.skipped()]
    if found.guessed:
        guessed = sorted(set(found.guessed))
        names = ", ".join(dict.fromkeys(graph.ops[i].name for i in guessed[:_SHOWN]))
        skipped.append(
            f"{len(guessed)} ops have sizes that may be the batch or not ({names}, …): guessed"
        )
    if found.in_proportion:
        skipped.append(f"{found.in_proportion} sizes that the data decides: scaled in proportion")
    stated = sum("lookups" in op.attributes for op in ops)
    if stated:
        skipped.append(
            f"{stated} ops state their lookups per table: kept; change the workload instead"
        )
    note = f"batch {old} rescaled to {batch}"
    return Edited(replace(graph, ops=ops, notes=(*graph.notes, note)), tuple(skipped))


def _conflicts(graph: OpGraph, ops: tuple[Op, ...]) -> Iterator[str]:
    """A text for each product of `ops` whose inner sizes differ, and did not in `graph`."""
    for index, (was, now) in enumerate(zip(graph.ops, ops, strict=True)):
        if now.name in _PRODUCTS and _operands(was) is None and (unfit := _operands(now)):
            yield (
                f"op {index} ({now.name}): operands of {unfit[0]} and {unfit[1]} "
                "do not fit: one of them does not change with the batch"
            )


def _operands(op: Op) -> list[list[int]] | None:
    """Shapes of a product's operands where they do not fit."""
    given = op.inputs[first_operand(op) :][:2]
    shapes = [list(t.shape) for t in given if isinstance(t, Tensor) and len(t.shape) > 1]
    return shapes if len(shapes) > 1 and shapes[0][-1] != shapes[1][-2] else None


def _resized(op: Op, read: tuple[tuple[Shape, ...], ...], made: list[Shape | None]) -> Op:
    """An op whose tensors have other shapes; `made` holds None for what is no tensor."""
    shapes = chain.from_iterable(read)
    inputs = tuple(_with_shapes(item, shapes) for item in op.inputs)
    tensors = zip(made, returned_by(op), strict=True)
    returned = (shape for shape, tensor in tensors if tensor is not None)
    outputs = tuple(_with_shapes(item, returned) for item in op.outputs)
    if inputs == op.inputs and outputs == op.outputs:
        return op
    was, now = ([*tensors_in(op.outputs), *op.tensors], [*tensors_in((outputs, inputs))])
    pairs = list(zip(was, now, strict=True))
    return replace(
        op,
        inputs=_with_integers(op, inputs, pairs),
        outputs=outputs,
        attributes=_attributes(op.attributes, pairs, len(op.tensors)),
    )


def _with_shapes(argument: Argument, each: Iterator[Shape | None]) -> Argument:
    """With the shape of `each` tensor in it, in order."""
    if isinstance(argument, tuple):
        return tuple(_with_shapes(item, each) for item in argument)
    if isinstance(argument, Tensor):
        shape = next(each, None)
        if shape is not None and shape != argument.shape:
            return replace(argument, shape=shape, strides=_strides(argument, shape))
    return argument


def _strides(tensor: Tensor, shape: Shape) -> Shape:
    """Dense strides in the order of the old ones; others grow where they step over the batch."""
    if not tensor.strides:
        return ()
    order = sorted(range(len(shape)), key=lambda i: (-tensor.strides[i], i))
    dense, now = ([prod(each[j] for j in order[order.index(i) + 1 :]) for i in range(len(shape))]
                  for each in (tensor.shape, shape))  # fmt: skip
    if tuple(dense) == tensor.strides:
        return tuple(now)
    return tuple(
        stride * new // old if old and stride % old == 0 else stride
        for stride, old, new in zip(tensor.strides, dense, now, strict=True)
    )


def _with_integers(op: Op, inputs: tuple[Argument, ...], pairs: Pairs) -> tuple[Argument, ...]:
    """`inputs` with lists of sizes and counts of samples as the tensors have them now."""
    renamed: dict[Argument, Argument] = {}
    for was, now in pairs:
        if was.shape:
            renamed.setdefault(was.shape, now.shape)
        if was.strides:
            renamed.setdefault(was.strides, now.strides)
    changed = [
        (old, new)
        for was, now in pairs
        for old, new in zip(was.shape, now.shape, strict=True)
        if old != new
    ]
    arguments = list(inputs)
    for place, item in enumerate(inputs):
        sizes = [each for each in item if type(each) is int] if isinstance(item, tuple) else []
        if sizes and len(sizes) == len(item):  # type: ignore[arg-type]
            arguments[place] = renamed.get(item, item)
            if item not in renamed and _SPLITS.search(op.name):
                arguments[place] = _parts(tuple(sizes), changed)
        elif type(item) is int and place == _INDEXED.get(op.name):
            near = (new - (old - item) for old, new in changed if item in (old, old - 1))
            arguments[place] = next(near, item)
    return tuple(arguments)


def _parts(parts: Shape, changed: list[tuple[int, int]]) -> Shape:
    """Parts that one dimension is split into."""
    for old, new in changed:
        if sum(parts) == old and not any(part * new % old for part in parts):
            return tuple(part * new // old for part in parts)
    return parts


def _attributes(about: Mapping[str, str], pairs: Pairs, read: int) -> Mapping[str, str]:
    """What is said of a collective, with its elements and splits in proportion to those of the
    tensors that it is given, the last `read`, or else of those that it returns."""
    known = dict(about)
    parts = (pairs[len(pairs) - read :], pairs[: len(pairs) - read])
    totals = [[sum(pair[at].elements for pair in part) for at in (0, 1)] for part in parts]
    for side in ("in", "out"):
        value = int(known.get(f"{side}_elements", "0"))
        fits = ((old, new) for old, new in totals if old != new and old and value % old == 0)
        old, new = next(fits, (1, 1)) if value else (1, 1)
        if old != new:
            known[f"{side}_elements"] = str(value // old * new)
            if split := known.get(f"{side}_split"):
                sizes = [round(int(part) * new / old) for part in split.split(",")]
                known[f"{side}_split"] = ",".join(map(str, sizes))
    return known
