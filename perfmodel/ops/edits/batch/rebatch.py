"""`rebatch`: the same program at another batch, and products whose operands no longer fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import prod
from types import MappingProxyType

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited
from perfmodel.ops.edits.batch.follow import Follower
from perfmodel.ops.edits.batch.leaves import batch_of, first_operand
from perfmodel.ops.edits.batch.sizes import Dims, Size, returned_by
from perfmodel.ops.graph import Argument, Op, OpGraph, Tensor, tensors_in

_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


def conflicts(old: Sequence[Op], new: Sequence[Op]) -> Iterator[str]:
    """A text for each product of `new` whose inner sizes differ, and did not in `old`."""
    for index, (was, now) in enumerate(zip(old, new, strict=True)):
        if now.name not in _PRODUCTS:
            continue
        at = first_operand(now)
        if _fits(now, at) or not _fits(was, at):
            continue
        left, right = now.inputs[at : at + 2]
        assert isinstance(left, Tensor)
        assert isinstance(right, Tensor)
        yield (
            f"op {index} ({now.name}): operands of {list(left.shape)} and {list(right.shape)} "
            "do not fit: one of them does not change with the batch"
        )


def _fits(op: Op, at: int) -> bool:
    operands = op.inputs[at : at + 2]
    shapes = [item.shape for item in operands if isinstance(item, Tensor) and len(item.shape) > 1]
    return len(shapes) < 2 or shapes[0][-1] == shapes[1][-2]


_INDEXED = {"aten::select": 2, "aten::slice": 3, "aten::narrow": 3, "aten::arange": 1}
"""Position of an integer that may count samples: an index, an end, a length."""
_SPLITS = re.compile("split|all_?to_?all")
"""Ops whose lists of integers are parts of a dimension."""
_NO_STRIDES: tuple[int, ...] = ()


class Rescaled:
    """Ops of one graph from batch `old` to batch `new`."""

    def __init__(self, graph: OpGraph, sizes: Follower, old: int, new: int) -> None:
        self._graph, self._sizes, self._old, self._new = graph, sizes, old, new
        self.in_proportion = 0
        """Sizes that had to be rounded: lists whose length the data decides."""

    def op(self, index: int) -> Op:
        """The op at `index`; raises `WorkloadError` where a size does not come out whole."""
        op = self._graph.ops[index]
        read = chain.from_iterable(self._sizes.inputs[index])
        made = zip(self._sizes.outputs[index], returned_by(op), strict=True)
        returned = (dims for dims, tensor in made if tensor is not None)
        inputs = tuple(self._resized(index, item, read) for item in op.inputs)
        outputs = tuple(self._resized(index, item, returned) for item in op.outputs)
        inputs = self._with_integers(index, op, inputs, outputs)
        if inputs == op.inputs and outputs == op.outputs:
            return op
        attributes = self._attributes(op, inputs, outputs) if op.attributes else op.attributes
        return replace(op, inputs=inputs, outputs=outputs, attributes=attributes)

    def _resized(self, index: int, argument: Argument, each: Iterator[Dims | None]) -> Argument:
        """With the sizes of `each` tensor in it, in order; None: as they are."""
        if isinstance(argument, Tensor):
            dims = next(each, None)
            return argument if dims is None else self._tensor(index, argument, dims)
        if isinstance(argument, tuple):
            return tuple(self._resized(index, item, each) for item in argument)
        return argument

    def _tensor(self, index: int, tensor: Tensor, dims: Dims) -> Tensor:
        shape = tuple(self._whole(index, size) for size in dims)
        if shape == tensor.shape:
            return tensor
        strides = _strides(tensor, shape, self._old, self._new)
        return replace(tensor, shape=shape, strides=strides)

    def _whole(self, index: int, size: Size) -> int:
        value = size.at(self._new)
        if isinstance(value, int) or value.denominator == 1:
            return int(value)
        was = size.at(self._old)
        if was < self._old:
            raise WorkloadError(
                f"{self._graph.source}: op {index} ({self._graph.ops[index].name}) splits a batch "
                f"of {self._old} into parts of {self._old / Fraction(was)}: {self._new} samples "
                "are no whole number of such parts"
            )
        self.in_proportion += 1
        return round(value)

    def _with_integers(
        self, index: int, op: Op, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]
    ) -> tuple[Argument, ...]:
        """`inputs` with lists of sizes and counts of samples as the tensors have them now."""
        renamed: dict[Argument, Argument] = {}
        pairs = [*zip(op.outputs, outputs, strict=True), *zip(op.inputs, inputs, strict=True)]
        for was, now in pairs:
            if isinstance(was, Tensor) and isinstance(now, Tensor) and len(was.shape) > 0:
                renamed.setdefault(was.shape, now.shape)
                if was.strides:
                    renamed.setdefault(was.strides, now.strides)
        arguments = [
            self._list(op, item, renamed, pairs) if _is_sizes(item) else item for item in inputs
        ]
        at = _INDEXED.get(op.name)
        if at is not None and at < len(arguments) and type(arguments[at]) is int:
            arguments[at] = self._count(arguments[at], pairs)  # type: ignore[arg-type]
        return tuple(arguments)

    def _list(
        self,
        op: Op,
        sizes: Argument,
        renamed: Mapping[Argument, Argument],
        pairs: list[tuple[Argument, Argument]],
    ) -> Argument:
        """A list of sizes: of a tensor, or the parts that one dimension is split into."""
        if sizes in renamed or not isinstance(sizes, tuple) or not _SPLITS.search(op.name):
            return renamed.get(sizes, sizes)
        parts = [size for size in sizes if isinstance(size, int)]
        for was, now in pairs:
            if isinstance(was, Tensor) and isinstance(now, Tensor):
                for old, new in zip(was.shape, now.shape, strict=True):
                    if old != new and sum(parts) == old and not any(p * new % old for p in parts):
                        return tuple(part * new // old for part in parts)
        return sizes

    def _count(self, value: int, pairs: list[tuple[Argument, Argument]]) -> int:
        """An index, end or length, if it is a size that changed, or one beside it."""
        for was, now in pairs:
            if isinstance(was, Tensor) and isinstance(now, Tensor):
                for old, new in zip(was.shape, now.shape, strict=True):
                    if old != new and value in (old, old - 1):
                        return new - (old - value)
        return value

    def _attributes(
        self, op: Op, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]
    ) -> Mapping[str, str]:
        """What is said of a collective, with its elements and splits in proportion."""
        known = dict(op.attributes)
        for key, split in (("in_elements", "in_split"), ("out_elements", "out_split")):
            if key not in known:
                continue
            value = int(known[key])
            for was, now in ((op.inputs, inputs), (op.outputs, outputs)):
                old, new = _elements(was), _elements(now)
                if old and value % old == 0 and old != new:
                    known[key] = str(value // old * new)
                    if split in known:
                        parts = [int(part) * new / old for part in known[split].split(",")]
                        known[split] = ",".join(str(round(part)) for part in parts)
                    break
        return MappingProxyType(known)


def _elements(arguments: tuple[Argument, ...]) -> int:
    return sum(tensor.elements for tensor in tensors_in(arguments))


def _is_sizes(argument: Argument) -> bool:
    return isinstance(argument, tuple) and bool(argument) and all(type(i) is int for i in argument)


def _strides(tensor: Tensor, shape: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """Dense strides in the order of the old ones; others grow where they step over the batch."""
    if not tensor.strides:
        return _NO_STRIDES
    order = sorted(range(len(shape)), key=lambda i: (-tensor.strides[i], i))
    dense = {}
    now = {}
    for at, i in enumerate(order):
        dense[i] = prod(tensor.shape[j] for j in order[at + 1 :])
        now[i] = prod(shape[j] for j in order[at + 1 :])
    if all(dense[i] == tensor.strides[i] for i in range(len(shape))):
        return tuple(now[i] for i in range(len(shape)))
    return tuple(
        stride * now[i] // dense[i] if dense[i] and stride % dense[i] == 0 else stride
        for i, stride in enumerate(tensor.strides)
    )


_SHOWN = 5


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
    sizes = Follower(graph, old)
    scaled = Rescaled(graph, sizes, old, batch)
    ops = tuple(map(scaled.op, range(len(graph))))
    unfit = list(conflicts(graph.ops, ops))
    if unfit and len(graph.data):
        raise WorkloadError(f"{graph.source}: batch {old} to {batch}: {unfit[0]}")
    skipped = [*unfit[:_SHOWN], *sizes.leaves.skipped()]
    if sizes.guessed:
        guessed = sorted(set(sizes.guessed))
        names = ", ".join(dict.fromkeys(graph.ops[i].name for i in guessed[:_SHOWN]))
        skipped.append(
            f"{len(guessed)} ops have sizes that may be the batch or not ({names}, …): guessed"
        )
    if scaled.in_proportion:
        skipped.append(f"{scaled.in_proportion} sizes that the data decides: scaled in proportion")
    stated = sum("lookups" in op.attributes for op in ops)
    if stated:
        skipped.append(
            f"{stated} ops state their lookups per table: kept; change the workload instead"
        )
    note = f"batch {old} rescaled to {batch}"
    return Edited(replace(graph, ops=ops, notes=(*graph.notes, note)), tuple(skipped))
