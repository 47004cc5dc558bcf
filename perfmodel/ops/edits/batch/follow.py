"""The sizes of every tensor of a graph as functions of the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfmodel.ops.edits.batch.leaves import Leaves
from perfmodel.ops.edits.batch.sizes import (
    Call,
    Dims,
    Size,
    fixed,
    product,
    reshaped_sizes,
    returned_by,
    returned_sizes,
)
from perfmodel.ops.graph import NO_OP, Op, OpGraph, Tensor, last_called, tensors_in

_CREATIONS = ("aten::empty", "aten::zeros", "aten::ones", "aten::full")
"""What gives scratch space, whose size need not be any other tensor's."""


class Follower:
    """Goes through a graph in program order; `inputs` and `outputs` hold what it found.

    An op's outputs come from its rule, from the op around it that returns the same tensor, from
    what it called, or from the shapes of its inputs, in this order.
    """

    def __init__(self, graph: OpGraph, batch: int) -> None:
        self.inputs: list[tuple[tuple[Dims, ...], ...]] = []
        """Per op and argument, the sizes of each tensor in it."""
        self.outputs: list[list[Dims | None]] = []
        self.guessed: list[int] = []
        """Ops some of whose sizes could be the batch's or not."""
        self._graph = graph
        self._batch = batch
        self.leaves = Leaves(graph, batch)
        self._known: dict[tuple[int, int], tuple[tuple[int, ...], Dims]] = {}
        """By tensor and storage: ids of tensors are those of others later."""
        self._stored: dict[int, list[tuple[tuple[int, ...], Dims]]] = defaultdict(list)
        self._seen: defaultdict[int, set[Size]] = defaultdict(set)
        self._follow()

    def _follow(self) -> None:
        ops = self._graph.ops
        closing: list[list[int]] = [[] for _ in ops]
        for index, last in reversed(list(enumerate(last_called(ops)))):
            closing[last].append(index)
        for index, op in enumerate(ops):
            self.inputs.append(
                tuple(
                    tuple(self._read(index, place, tensor) for tensor in tensors_in(argument))
                    for place, argument in enumerate(op.inputs)
                )
            )
            self.outputs.append(self._entered(index, op))
            for done in closing[index]:
                self._returned(done, ops[done])

    def _read(self, index: int, position: int, tensor: Tensor) -> Dims:
        if not tensor.shape:
            return ()
        known = self._known.get((tensor.tensor_id, tensor.storage_id))
        if known and known[0] == tensor.shape:
            return known[1]
        if self.leaves.is_gradient(index):
            return fixed(tensor.shape)
        stored = self._stored.get(tensor.storage_id, ())
        for shape, dims in reversed(stored):
            if shape == tensor.shape:
                return dims
            other = reshaped_sizes(dims, shape, tensor.shape, self._batch)
            if other is not None:
                return other
        if stored:
            return self._of_values(index, tensor.shape)
        return self._kept(tensor, self.leaves.dims(index, position, tensor))

    def _kept(self, tensor: Tensor, dims: Dims) -> Dims:
        if tensor.tensor_id >= 0:
            self._known[tensor.tensor_id, tensor.storage_id] = (tensor.shape, dims)
        if tensor.storage_id >= 0:
            self._stored[tensor.storage_id][-3:] = [
                *self._stored[tensor.storage_id][-2:],
                (tensor.shape, dims),
            ]
        for shape, size in zip(tensor.shape, dims, strict=True):
            self._seen[shape].add(size)
        for part in (dims, dims[:-1]):
            count = product(part) if len(part) > 1 else None
            if count is not None:
                self._seen[int(count.at(self._batch))].add(count)
        return dims

    def _entered(self, index: int, op: Op) -> list[Dims | None]:
        call = Call(op, self.inputs[index], self._batch)
        made = returned_by(op)
        if not made:
            return []
        entered: list[Dims | None] = [None] * len(made)
        for at, (sizes, tensor) in enumerate(zip(returned_sizes(call), made, strict=False)):
            if sizes is None or tensor is None or len(sizes) != len(tensor.shape):
                continue
            others = self._of_values(index, tensor.shape) if None in sizes else ()
            whole = tuple(others[i] if size is None else size for i, size in enumerate(sizes))
            if tuple(size.at(self._batch) for size in whole) == tensor.shape:
                entered[at] = whole
        for at, tensor in enumerate(made):
            if tensor is not None:
                entered[at] = entered[at] if entered[at] is not None else self._above(op, tensor)
                dims = entered[at]
                if dims is not None:
                    self._kept(tensor, dims)
        return entered

    def _above(self, op: Op, tensor: Tensor) -> Dims | None:
        """What an op around this one returns as the same tensor."""
        above = op.parent
        while above != NO_OP and tensor.tensor_id >= 0:
            for at, other in enumerate(returned_by(self._graph.ops[above])):
                if (
                    other is not None
                    and other.tensor_id == tensor.tensor_id
                    and (other.storage_id, other.shape) == (tensor.storage_id, tensor.shape)
                    and self.outputs[above][at] is not None
                ):
                    return self.outputs[above][at]
            above = self._graph.ops[above].parent
        return None

    def _returned(self, index: int, op: Op) -> None:
        """What is not known yet of an op's outputs once all that it called is done."""
        made = returned_by(op)
        for at, tensor in enumerate(made):
            if tensor is None or self.outputs[index][at] is not None:
                continue
            known = self._known.get((tensor.tensor_id, tensor.storage_id))
            is_own = known is not None and known[0] == tensor.shape
            calls = index + 1 < len(self._graph.ops) and self._graph.ops[index + 1].parent == index
            if is_own and calls and known is not None:
                dims = known[1]
            else:
                dims = self._from_shapes(index, op, tensor)
            self.outputs[index][at] = dims
            self._kept(tensor, dims)

    def _from_shapes(self, index: int, op: Op, tensor: Tensor) -> Dims:
        """Like an input of the same shape, else broadcast, else size by size."""
        shape = tensor.shape
        given = [
            (tensor.shape, dims)
            for argument, matched in zip(op.inputs, self.inputs[index], strict=True)
            for tensor, dims in zip(tensors_in(argument), matched, strict=True)
        ]
        same = list(dict.fromkeys(dims for other, dims in given if other == shape))
        if len(same) > 1:
            self.guessed.append(index)
            same.sort(key=lambda dims: not any(size.per_sample for size in dims))
        if same:
            return same[0]
        wide = [(other, dims) for other, dims in given if len(other) <= len(shape)]
        sizes = [
            next(
                (
                    dims[at - len(shape)]
                    for other, dims in wide
                    if len(shape) - at <= len(other) and other[at - len(shape)] == size != 1
                ),
                None,
            )
            for at, size in enumerate(shape)
        ]
        if sizes and all(size is not None or shape[at] == 1 for at, size in enumerate(sizes)):
            return tuple(size or Size(0, 1) for size in sizes)
        for other, dims in given:
            if other[: len(shape)] == shape:
                return dims[: len(shape)]
        return self._of_values(index, shape)

    def _of_values(self, index: int, shape: tuple[int, ...]) -> Dims:
        """Each size like one of that value in the op's inputs, in those of the ops around it, or
        anywhere before; the batch is in one of them at most."""
        scope = index
        while scope != NO_OP and scope < len(self.inputs):
            for dims in self._groups(scope):
                if tuple(size.at(self._batch) for size in dims) == shape:
                    return dims
            scope = self._graph.ops[scope].parent
        sizes = [self._of_value(index, at, size, shape) for at, size in enumerate(shape)]
        scaled = [at for at, size in enumerate(sizes) if size.per_sample]
        for at in scaled[1:]:
            self.guessed.append(index)
            sizes[at] = Size(0, shape[at])
        return tuple(sizes)

    def _of_value(self, index: int, at: int, value: int, shape: tuple[int, ...]) -> Size:
        scope = index
        while scope != NO_OP and scope < len(self.inputs):
            near = self._scope(scope)
            if value in near:
                return self._chosen(index, near[value], is_first=at == 0)
            for step in (1, -1) if len(shape) == 1 else ():
                shifted = {s for s in near.get(value - step, ()) if s.per_sample}
                if shifted and value - step > 1:
                    size = min(shifted)
                    return Size(size.per_sample, size.fixed + step)
            scope = self._graph.ops[scope].parent
        is_made = self._graph.ops[index].name.startswith(_CREATIONS)
        if value in self._seen and not (is_made and at):
            is_first = at == 0 and value == self._batch
            return self._chosen(index, self._seen[value], is_first=is_first)
        if value and value % self._batch == 0 and len(shape) == 1:
            self.guessed.append(index)
            return Size(value // self._batch, 0)
        return Size(0, value)

    def _chosen(self, index: int, sizes: set[Size], *, is_first: bool) -> Size:
        """The one size, else the one that grows most, or least where it is not the first."""
        if len(sizes) > 1:
            self.guessed.append(index)
        return max(sizes) if is_first else min(sizes)

    def _scope(self, index: int) -> dict[int, set[Size]]:
        """Value to the sizes and numbers of elements of that value among an op's tensors."""
        near: defaultdict[int, set[Size]] = defaultdict(set)
        for dims in self._groups(index):
            for size in (*dims, product(dims) if len(dims) > 1 else None):
                if size is not None:
                    near[int(size.at(self._batch))].add(size)
        return near

    def _groups(self, index: int) -> Iterator[Dims]:
        """Sizes of an op's outputs as far as they are known, then those of its inputs."""
        if index < len(self.outputs):
            yield from (dims for dims in self.outputs[index] if dims)
        for dims in self.inputs[index]:
            yield from dims
