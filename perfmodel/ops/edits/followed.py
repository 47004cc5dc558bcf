"""The sizes that every tensor of a graph has at another batch, followed from op to op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from math import prod

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.leaves import Leaves
from perfmodel.ops.edits.returned import (
    Batch,
    Call,
    Shape,
    Sizes,
    reshaped,
    returned_by,
    returned_sizes,
)
from perfmodel.ops.graph import NO_OP, Op, OpGraph, Tensor, last_called, tensors_in

_CREATIONS = ("aten::empty", "aten::zeros", "aten::ones", "aten::full")
"""What gives scratch space, whose size need not be any other tensor's."""


class Follower:
    """Goes through a graph in program order; `inputs` and `outputs` hold the shapes that it found.

    An op's outputs come from its rule, from the op around it that returns the same tensor, from
    what it called, or from the shapes of its inputs, in this order.
    """

    def __init__(self, graph: OpGraph, batch: Batch) -> None:
        self.inputs: list[tuple[tuple[Shape, ...], ...]] = []
        """Per op and argument, of each tensor in it."""
        self.outputs: list[list[Shape | None]] = []
        self.guessed: list[int] = []
        """Ops some of whose sizes could be the batch's or not."""
        self.in_proportion = 0
        """Sizes that had to be rounded: lists whose length the data decides."""
        self.leaves = Leaves(graph, batch.old)
        self._graph, self._ops, self._batch = graph, graph.ops, batch
        self._known: dict[tuple[int, int], tuple[Shape, Shape]] = {}
        """By tensor and storage: ids of tensors are those of others later."""
        self._stored: defaultdict[int, list[tuple[Shape, Shape]]] = defaultdict(list)
        self._seen: defaultdict[int, set[int]] = defaultdict(set)
        closing: list[list[int]] = [[] for _ in self._ops]
        for index, last in reversed(list(enumerate(last_called(self._ops)))):
            closing[last].append(index)
        for index, op in enumerate(self._ops):
            self.inputs.append(
                tuple(
                    tuple(self._read(index, place, tensor) for tensor in tensors_in(argument))
                    for place, argument in enumerate(op.inputs)
                )
            )
            self.outputs.append(self._entered(index, op))
            for done in closing[index]:
                self._left(done, self._ops[done])

    def _read(self, index: int, position: int, tensor: Tensor) -> Shape:
        if not tensor.shape:
            return ()
        known = self._known.get((tensor.tensor_id, tensor.storage_id))
        if known and known[0] == tensor.shape:
            return known[1]
        if self.leaves.is_gradient(index):
            return tensor.shape
        stored = self._stored.get(tensor.storage_id, ())
        for shape, now in reversed(stored):
            sizes = (
                now if shape == tensor.shape else reshaped(shape, now, tensor.shape, self._batch)
            )
            if sizes is not None:
                return self._whole(index, tensor.shape, sizes)
        if stored:
            return self._of_values(index, tensor.shape)
        scaled = self.leaves.scaled(index, position, tensor)
        return self._kept(
            tensor, self._whole(index, tensor.shape, self._scaled(tensor.shape, scaled))
        )

    def _scaled(self, shape: Shape, scaled: tuple[int, int] | None) -> Sizes:
        """`shape` with one dimension scaled, but for a number of elements of it."""
        if scaled is None:
            return shape
        at, rest = scaled
        grown = Fraction((shape[at] - rest) * self._batch.new, self._batch.old) + rest
        return (*shape[:at], grown, *shape[at + 1 :])

    def _whole(self, index: int, shape: Shape, sizes: Sizes) -> Shape:
        """Whole numbers; one of the data's is rounded, a part of the batch must come out whole."""
        found = []
        for was, size in zip(shape, sizes, strict=True):
            if isinstance(size, Fraction) and size.denominator > 1:
                old, new = self._batch
                if was < old:
                    raise WorkloadError(
                        f"{self._graph.source}: op {index} ({self._ops[index].name}) splits a batch"
                        f" of {old} into parts of {old / Fraction(was)}: {new} samples are no "
                        "whole number of such parts"
                    )
                self.in_proportion += 1
            found.append(round(size or 0))
        return tuple(found)

    def _kept(self, tensor: Tensor, now: Shape) -> Shape:
        shape = tensor.shape
        if tensor.tensor_id >= 0:
            self._known[tensor.tensor_id, tensor.storage_id] = (shape, now)
        if tensor.storage_id >= 0:
            stored = self._stored[tensor.storage_id]
            stored[-3:] = [*stored[-2:], (shape, now)]
        for was, size in _values(shape, now):
            self._seen[was].add(size)
        if len(shape) > 2:
            self._seen[prod(shape[:-1])].add(prod(now[:-1]))
        return now

    def _entered(self, index: int, op: Op) -> list[Shape | None]:
        made = returned_by(op)
        entered: list[Shape | None] = [None] * len(made)
        if not made:
            return entered
        call = Call(op, self.inputs[index], self._batch)
        for at, (sizes, tensor) in enumerate(zip(returned_sizes(call), made, strict=False)):
            if sizes is None or tensor is None or len(sizes) != len(tensor.shape):
                continue
            others = self._of_values(index, tensor.shape) if None in sizes else ()
            whole = tuple(others[i] if size is None else size for i, size in enumerate(sizes))
            entered[at] = self._whole(index, tensor.shape, whole)
        for at, tensor in enumerate(made):
            if tensor is not None:
                found = entered[at] = (
                    self._above(op, tensor) if entered[at] is None else entered[at]
                )
                if found is not None:
                    self._kept(tensor, found)
        return entered

    def _above(self, op: Op, tensor: Tensor) -> Shape | None:
        """What an op around this one returns as the same tensor."""
        above = op.parent if tensor.tensor_id >= 0 else NO_OP
        identity = tensor.tensor_id, tensor.storage_id, tensor.shape
        while above != NO_OP:
            pairs = zip(returned_by(self._ops[above]), self.outputs[above], strict=True)
            for other, now in pairs:
                if other is None or now is None:
                    continue
                if (other.tensor_id, other.storage_id, other.shape) == identity:
                    return now
            above = self._ops[above].parent
        return None

    def _left(self, index: int, op: Op) -> None:
        """What is not known yet of an op's outputs once all that it called is done."""
        calls = index + 1 < len(self._ops) and self._ops[index + 1].parent == index
        for at, tensor in enumerate(returned_by(op)):
            if tensor is None or self.outputs[index][at] is not None:
                continue
            known = self._known.get((tensor.tensor_id, tensor.storage_id)) if calls else None
            is_own = known is not None and known[0] == tensor.shape
            found = known[1] if known and is_own else self._from_shapes(index, op, tensor.shape)
            self.outputs[index][at] = self._kept(tensor, found)

    def _from_shapes(self, index: int, op: Op, shape: Shape) -> Shape:
        """Like an input of the same shape, else broadcast, else size by size."""
        given = list(self._read_by(index))
        same = list(dict.fromkeys(now for other, now in given if other == shape))
        if len(same) > 1:
            self.guessed.append(index)
        if same:
            return next((now for now in same if now != shape), shape)
        sizes = []
        for at, size in enumerate(shape, -len(shape)):
            fits = (n[at] for o, n in given if -at <= len(o) <= len(shape) and o[at] == size != 1)
            sizes.append(next(fits, 1 if size == 1 else None))
        if sizes and None not in sizes:
            return tuple(size or 0 for size in sizes)
        return self._of_values(index, shape)

    def _read_by(self, index: int) -> Iterator[tuple[Shape, Shape]]:
        """Old and new shapes of an op's inputs."""
        new = chain.from_iterable(self.inputs[index])
        return zip((t.shape for t in self._ops[index].tensors), new, strict=True)

    def _of_values(self, index: int, shape: Shape) -> Shape:
        """Each size like one of that value in the op's inputs, in those of the ops around it, or
        anywhere before; the batch is in one of them at most."""
        for scope in self._around(index):
            for other, now in self._pairs(scope):
                if other == shape:
                    return now
        sizes = [self._of_value(index, at, size, shape) for at, size in enumerate(shape)]
        for at in [at for at, size in enumerate(sizes) if size != shape[at]][1:]:
            self.guessed.append(index)
            sizes[at] = shape[at]
        return tuple(sizes)

    def _of_value(self, index: int, at: int, value: int, shape: Shape) -> int:
        for scope in self._around(index):
            near: defaultdict[int, set[int]] = defaultdict(set)
            for was, now in (pair for each in self._pairs(scope) for pair in _values(*each)):
                near[was].add(now)
            if value in near:
                return self._chosen(index, value, near[value], is_first=at == 0)
            for step in (1, -1) if len(shape) == 1 else ():
                shifted = near.get(value - step, set()) - {value - step}
                if shifted and value - step > 1:
                    return min(shifted, key=lambda now: abs(now - value)) + step
        is_made = self._ops[index].name.startswith(_CREATIONS)
        if value in self._seen and not (is_made and at):
            is_first = at == 0 and value == self._batch.old
            return self._chosen(index, value, self._seen[value], is_first=is_first)
        if value and value % self._batch.old == 0 and len(shape) == 1:
            self.guessed.append(index)
            return value // self._batch.old * self._batch.new
        return value

    def _chosen(self, index: int, value: int, sizes: set[int], *, is_first: bool) -> int:
        """The one size, else the one that changes most, or least where it is not the first."""
        if len(sizes) > 1:
            self.guessed.append(index)
        return (max if is_first else min)(sizes, key=lambda now: abs(now - value))

    def _around(self, index: int) -> Iterator[int]:
        """An op and those around it that have been entered."""
        while index != NO_OP and index < len(self.inputs):
            yield index
            index = self._ops[index].parent

    def _pairs(self, index: int) -> Iterator[tuple[Shape, Shape]]:
        """Old and new shapes of an op's outputs as far as they are known, then of its inputs."""
        if index < len(self.outputs):
            made = zip(returned_by(self._ops[index]), self.outputs[index], strict=True)
            yield from ((tensor.shape, now) for tensor, now in made if tensor and now)
        yield from self._read_by(index)


def _values(shape: Shape, now: Shape) -> Iterator[tuple[int, int]]:
    """Old and new sizes, and numbers of elements."""
    yield from zip(shape, now, strict=True)
    if len(shape) > 1:
        yield prod(shape), prod(now)
