"""Sizes of tensors that no op of the graph made: parameters, samples, tensors without ids.

A layer reads rows of samples and a weight. Its backward multiplies the rows of gradients by the
weight, and the transposed gradients by the rows: there the rows are the inner size.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.batch.sizes import Dims, Size, fixed, per_sample
from perfmodel.ops.graph import (
    BACKWARD,
    INPUT,
    NO_OP,
    OPTIMIZER,
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
_MATRIX = 2
_SHOWN = 5
_GUESSED = (
    "tensors have no ids: the sizes that depend on the batch are inferred from layers and values; "
    "an execution trace shows them exactly"
)
_LED_BY_BATCH = {"aten::embedding": 1, "aten::embedding_bag": 2}
"""In a profile alone: arguments whose first size is the batch."""
_ACCUMULATE = "AccumulateGrad"
_INTEGERS = ("int32", "int64")
_LOOKUP = "fbgemm::"
_DATA_DEPENDENT_FACTOR = 4
"""Lists of indices this many times the batch or longer grow with it, divisible by it or not."""


def _parameters(op: Op) -> list[int]:
    """Where an operator has its parameters; what else it reads may be the step's input."""
    record = operator_of(op.name)
    return [] if record is None else record.parameters


def first_operand(op: Op) -> int:
    """Where a layer has what it transforms, or a product its left operand (the right follows)."""
    record = operator_of(op.name)
    assert record is not None
    return next(iter(record.tensors.values()))[0]


class Leaves:
    """Sizes of the tensors that a graph reads and never made; of those without ids, as the layers
    of a profile tell of rows and parameters."""

    def __init__(self, graph: OpGraph, batch: int) -> None:
        self._graph = graph
        self._batch = batch
        updated = [t for op in graph.ops if op.phase == OPTIMIZER for t in op.tensors]
        self._fixed_storages = {t.storage_id for t in updated if t.storage_id >= 0}
        self._fixed_shapes = {t.shape for t in updated if len(t.shape) > 1}
        self._rows: set[int] = set()
        self._parameter_shapes: set[tuple[int, ...]] = set()
        for op in graph.ops:
            is_layer = op.name in _LAYERS and op.phase != BACKWARD
            rows = _tensor(op, first_operand(op)) if is_layer else None
            if rows is not None and len(rows.shape) > 1 and rows.tensor_id < 0:
                self._rows.add(prod(rows.shape[:-1]))
            elif op.name not in _CONVOLUTIONS:
                continue
            weights = (_tensor(op, place) for place in _parameters(op))
            self._parameter_shapes |= {t.shape for t in weights if t is not None}
        self._parameter_shapes |= {shape[::-1] for shape in self._parameter_shapes}

    def skipped(self) -> list[str]:
        """What of a change of the batch is a guess, or is left out."""
        if not self._rows:
            return []
        skipped = [_GUESSED]
        odd = sorted(rows for rows in self._rows if rows % self._batch)
        if odd:
            shown = ", ".join(map(str, odd[:_SHOWN]))
            skipped.append(
                f"layers of {shown} rows, no multiple of {self._batch}: kept; see `old=`"
            )
        return skipped

    def _is_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor has the shape of a parameter, and does not begin with the batch."""
        lead = tensor.shape[0] if tensor.shape else 0
        is_rows = lead == self._batch or (lead in self._rows and len(tensor.shape) > 1)
        return tensor.tensor_id < 0 and tensor.shape in self._parameter_shapes and not is_rows

    def _product(self, op: Op, position: int) -> Dims | None:
        """Sizes of an operand of a matrix product; None for what is none."""
        if op.name not in _PRODUCTS or position - (at := first_operand(op)) not in (0, 1):
            return None
        left, right = _tensor(op, at), _tensor(op, at + 1)
        if left is None or right is None or left.tensor_id >= 0:
            return None
        if len(left.shape) != _MATRIX or len(right.shape) != _MATRIX:
            return None
        is_left = position == at
        rows = self._scaled(left.shape[0])
        inner = self._scaled(left.shape[1])
        if inner is not None and op.phase == BACKWARD and (rows is None or _transposed(left)):
            return (Size(0, left.shape[0]), inner) if is_left else (inner, Size(0, right.shape[1]))
        if rows is not None:
            return (rows, Size(0, left.shape[1])) if is_left else fixed(right.shape)
        return None

    def _scaled(self, size: int) -> Size | None:
        """A number of rows as so many per sample."""
        if size not in self._rows or size % self._batch:
            return None
        return Size(size // self._batch, 0)

    def is_fixed(self, index: int, position: int, tensor: Tensor) -> bool:
        """Whether it is a parameter, a gradient, an optimizer's state, or of a table."""
        op = self._graph.ops[index]
        is_list = tensor.dtype in _INTEGERS and tensor.shape[:1] >= (self._batch,)
        if (
            op.phase == OPTIMIZER
            or tensor.storage_id in self._fixed_storages
            or position in _parameters(op)
            or (tensor.storage_id < 0 and tensor.shape in self._fixed_shapes)
            or self._is_parameter(tensor)
            or (op.name.startswith(_LOOKUP) and not is_list)
        ):
            return True
        return self.is_gradient(index)

    def is_gradient(self, index: int) -> bool:
        """Whether an op is part of the accumulation of a parameter's gradient."""
        op = self._graph.ops[index]
        while _ACCUMULATE not in op.name:
            if op.parent == NO_OP:
                return False
            op = self._graph.ops[op.parent]
        return True

    def dims(self, index: int, position: int, tensor: Tensor) -> Dims:
        """Sizes of a tensor that an op reads first, as the argument at `position`."""
        product = self._product(self._graph.ops[index], position)
        if product is not None:
            return product
        if self.is_fixed(index, position, tensor):
            return fixed(tensor.shape)
        return self._input_dims(index, position, tensor)

    def _input_dims(self, index: int, position: int, tensor: Tensor) -> Dims:
        """Sizes of a step's input: the batch leads, or stands elsewhere; flat lists hold so many
        per sample. A dimension that is taken apart by `select` is not the batch."""
        op, shape, batch = self._graph.ops[index], tensor.shape, self._batch
        taken = op.inputs[1] if op.name == "aten::select" and position == 0 else None
        leads_only = tensor.tensor_id < 0 and tensor.dtype not in _INTEGERS
        places = range(1 if leads_only else len(shape))
        at = next((i for i in places if shape[i] == batch and i != taken), None)
        if at is not None:
            return (*fixed(shape[:at]), Size(1, 0), *fixed(shape[at + 1 :]))
        lead, rest = shape[0], fixed(shape[1:])
        if lead and lead % batch == 0 and taken != 0:
            return (Size(lead // batch, 0), *rest)
        if not rest and 1 < batch < lead and lead % batch == 1:
            return (Size(lead // batch, 1),)
        is_list = not rest and tensor.dtype in _INTEGERS
        if is_list and lead > _DATA_DEPENDENT_FACTOR * batch:
            return (per_sample(lead, batch),)
        return fixed(shape)


def _tensor(op: Op, place: int) -> Tensor | None:
    given = argument(op, place)
    return given if isinstance(given, Tensor) else None


def _transposed(tensor: Tensor) -> bool:
    """Whether a matrix is read along its columns, as a transposed one is."""
    return len(tensor.strides) == _MATRIX and tensor.strides[0] == 1 < tensor.strides[1]


def batch_of(graph: OpGraph) -> int:
    """The batch that a graph was recorded at.

    It is the first size of what the first convolution reads; of what the first linear layer reads,
    the number of rows, or that divisor of it, or size, which leads most of the graph's inputs.
    Raises `WorkloadError` where no input shows it.
    """
    given = _first_layer(graph)
    if given is not None and given[0].startswith("aten::conv") and given[1][0] > 1:
        return given[1][0]
    votes = _leading_sizes(graph)
    leading = given[1][:-1] if given is not None else ()
    rows = prod(leading)
    if len(leading) > 1:
        votes = Counter({size: votes[size] for size in leading if size > 1})
    elif rows > 1:
        votes = Counter({s: n for s, n in votes.items() if rows % s == 0 and rows not in votes})
    likeliest = max(votes, key=lambda size: (votes[size], size), default=rows)
    if likeliest < 1 or (likeliest == 1 and not leading):
        raise WorkloadError(f"{graph.source}: no input shows the batch size: pass `old=`")
    return likeliest


def _first_layer(graph: OpGraph) -> tuple[str, tuple[int, ...]] | None:
    """Name of the first layer, and the shape of what it transforms."""
    for op in graph.ops:
        is_layer = op.name in (*_CONVOLUTIONS, *_LAYERS, *_PRODUCTS)
        given = _tensor(op, first_operand(op)) if is_layer else None
        if given is not None and len(given.shape) > 1:
            return op.name, given.shape
    return None


def _leading_sizes(graph: OpGraph) -> Counter[int]:
    """How many of the graph's inputs begin with each size above 1."""
    leaves = Leaves(graph, 2)
    seen: set[int] = set()
    votes: Counter[int] = Counter()
    for index, op in enumerate(graph.ops):
        for position, item in enumerate(op.inputs):
            for tensor in tensors_in(item):
                is_new = tensor.tensor_id not in seen
                if tensor.tensor_id < 0:
                    is_new = op.phase == INPUT or position == _LED_BY_BATCH.get(op.name, -1)
                if is_new and tensor.shape and not leaves.is_fixed(index, position, tensor):
                    votes[tensor.shape[0]] += tensor.shape[0] > 1
                seen.add(tensor.tensor_id)
        seen.update(tensor.tensor_id for tensor in tensors_in(op.outputs))
    return +votes
