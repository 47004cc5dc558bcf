"""Which sizes of tensors that no op of a graph made are the batch's: parameters, samples, tensors
without ids.

A layer reads rows of samples and a weight. Its backward multiplies the rows of gradients by the
weight, and the transposed gradients by the rows: there the rows are the inner size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import (
    BACKWARD,
    INPUT,
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
    Tensor,
    argument,
    tensors_in,
)
from perfmodel.ops.operators import operator_of

_LAYERS = ("aten::linear", "aten::addmm")
_PRODUCTS = ("aten::mm", "aten::addmm")
_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_SHOWN = 5
_GUESSED = (
    "tensors have no ids: the sizes that depend on the batch are inferred from layers and values; "
    "an execution trace shows them exactly"
)
_LED_BY_BATCH = {"aten::embedding": 1, "aten::embedding_bag": 2}
"""In a profile alone: arguments whose first size is the batch."""
_INTEGERS = ("int32", "int64")
_DATA_DEPENDENT_FACTOR = 4
"""Lists of indices this many times the batch or longer grow with it, divisible by it or not."""


def first_operand(op: Op) -> int:
    """Where a layer has what it transforms, or a product its left operand (the right follows)."""
    record = operator_of(op.name)
    assert record is not None
    return next(iter(record.tensors.values()))[0]


def _tensor(op: Op, place: int) -> Tensor | None:
    given = argument(op, place)
    return given if isinstance(given, Tensor) else None


class Leaves:
    """What the layers of a graph tell of the tensors that it reads and never made."""

    def __init__(self, graph: OpGraph, batch: int) -> None:
        self._ops, self._batch = graph.ops, batch
        self._fixed_storages = _kept_by_optimizer(graph.ops)
        self._rows: set[int] = set()
        """How many rows layers read, of tensors without ids."""
        self._parameter_shapes: set[tuple[int, ...]] = set()
        """Of parameters without ids, as they are and transposed."""
        for op in graph.ops:
            record = operator_of(op.name)
            if record is None or op.phase == BACKWARD:
                continue
            rows = _tensor(op, first_operand(op)) if op.name in _LAYERS else None
            if rows is not None and len(rows.shape) > 1 and rows.tensor_id < 0:
                self._rows.add(prod(rows.shape[:-1]))
            for weight in (_tensor(op, place) for place in record.parameters):
                if weight is not None and weight.tensor_id < 0:
                    self._parameter_shapes |= {weight.shape, weight.shape[::-1]}

    def skipped(self) -> list[str]:
        """What of a change of the batch is a guess, or is left out."""
        if not self._rows:
            return []
        odd = ", ".join(map(str, sorted(n for n in self._rows if n % self._batch)[:_SHOWN]))
        kept = f"layers of {odd} rows, no multiple of {self._batch}: kept; see `old=`"
        return [_GUESSED, kept] if odd else [_GUESSED]

    def grows_at(self, index: int, position: int, tensor: Tensor) -> int | None:
        """Which dimension is the batch's of a tensor that an op reads first, as the argument at
        `position`; None: none is."""
        op = self._ops[index]
        if op.name in _PRODUCTS and (place := position - first_operand(op)) in (0, 1):
            rows_at = self._rows_in_product(op)
            if rows_at is not None:
                return rows_at[place]
        if self.is_fixed(index, position, tensor):
            return None
        taken = op.inputs[1] if op.name == "aten::select" and position == 0 else None
        return self._batch_in_input(tensor, taken)

    def _rows_in_product(self, op: Op) -> tuple[int | None, int | None] | None:
        """Which dimension of the left and of the right operand are rows of samples, in a product of
        matrices without ids; None where neither is known to be."""
        left, right = (_tensor(op, first_operand(op) + place) for place in (0, 1))
        if not (left and right and left.tensor_id < 0 and len(left.shape) == len(right.shape) == 2):
            return None
        rows, inner = (n in self._rows and n % self._batch == 0 for n in left.shape)
        is_transposed = left.strides[:1] == (1,) and left.strides[1:] > (1,)
        if inner and op.phase == BACKWARD and (is_transposed or not rows):
            return 1, 0
        return (0, None) if rows else None

    def _batch_in_input(self, tensor: Tensor, taken: Argument) -> int | None:
        """Of an input of a step: the batch leads, or stands elsewhere (of floats without ids it
        leads), or a flat list holds so many per sample. The dimension that is `taken` apart is not
        the batch."""
        shape, batch, is_list = tensor.shape, self._batch, tensor.dtype in _INTEGERS
        for at, size in enumerate(shape if is_list or tensor.tensor_id >= 0 else shape[:1]):
            if size == batch and at != taken:
                return at
        lead = shape[0]
        if lead and lead % batch == 0 and taken != 0:
            return 0
        is_offsets = 1 < batch < lead and lead % batch == 1
        is_long = is_list and lead > _DATA_DEPENDENT_FACTOR * batch
        return 0 if len(shape) == 1 and (is_offsets or is_long) else None

    def is_fixed(self, index: int, position: int, tensor: Tensor) -> bool:
        """Whether it is a parameter, a gradient, an optimizer's state, or of a table."""
        op, lead = self._ops[index], tensor.shape[0] if tensor.shape else 0
        record = operator_of(op.name)
        is_list = tensor.dtype in _INTEGERS and lead >= self._batch
        is_rows = lead == self._batch or (lead in self._rows and len(tensor.shape) > 1)
        return (
            op.phase == OPTIMIZER
            or tensor.storage_id in self._fixed_storages
            or (record is not None and position in record.parameters)
            or (tensor.tensor_id < 0 and tensor.shape in self._parameter_shapes and not is_rows)
            or (op.name.startswith("fbgemm::") and not is_list)
            or self.is_gradient(index)
        )

    def is_gradient(self, index: int) -> bool:
        """Whether an op is part of the accumulation of a parameter's gradient."""
        while index != NO_OP and "AccumulateGrad" not in self._ops[index].name:
            index = self._ops[index].parent
        return index != NO_OP


def _kept_by_optimizer(ops: Sequence[Op]) -> set[int]:
    """Storages that an optimizer reads and did not make: what it makes for a while is memory that
    others had, and will have."""
    kept, made = set[int](), set[int]()
    for op in ops:
        if op.phase == OPTIMIZER:
            kept |= {t.storage_id for t in op.tensors} - made - {-1}
            made |= {t.storage_id for t in tensors_in(op.outputs)} - kept
    return kept


def batch_of(graph: OpGraph) -> int:
    """The batch that a graph was recorded at.

    It is the first size of what the first convolution reads; of what the first linear layer reads,
    the number of rows, or that divisor of it, or size, which leads most of the graph's inputs.
    Raises `WorkloadError` where no input shows it.
    """
    layers = (op for op in graph.ops if op.name in (*_CONVOLUTIONS, *_LAYERS, *_PRODUCTS))
    given = ((op.name, _tensor(op, first_operand(op))) for op in layers)
    shapes = ((name, t.shape) for name, t in given if t is not None and len(t.shape) > 1)
    name, shape = next(shapes, ("", ()))
    if name in _CONVOLUTIONS and shape[0] > 1:
        return shape[0]
    leaves, seen, votes = Leaves(graph, 2), set[int](), Counter[int]()
    for index, op in enumerate(graph.ops):  # how many inputs begin with each size above 1
        for position, item in enumerate(op.inputs):
            for tensor in tensors_in(item):
                is_new = tensor.tensor_id not in seen
                if tensor.tensor_id < 0:
                    is_new = op.phase == INPUT or position == _LED_BY_BATCH.get(op.name, -1)
                if is_new and tensor.shape and not leaves.is_fixed(index, position, tensor):
                    votes[tensor.shape[0]] += tensor.shape[0] > 1
                seen.add(tensor.tensor_id)
        seen.update(tensor.tensor_id for tensor in tensors_in(op.outputs))
    votes, leading = +votes, shape[:-1]
    rows = prod(leading)
    if len(leading) > 1:
        votes = Counter({size: votes[size] for size in leading if size > 1})
    elif rows > 1:
        votes = Counter({s: n for s, n in votes.items() if rows % s == 0 and rows not in votes})
    likeliest = max(votes, key=lambda size: (votes[size], size), default=rows)
    if likeliest < 1 or (likeliest == 1 and not leading):
        raise WorkloadError(f"{graph.source}: no input shows the batch size: pass `old=`")
    return likeliest
