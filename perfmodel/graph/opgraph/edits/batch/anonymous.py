"""Sizes of tensors that a profile gives no ids: by what layers, matrix products and parameters are.

A layer reads rows of samples and a weight. Its backward multiplies the rows of gradients by the
weight, and the transposed gradients by the rows: there the rows are the inner size.
"""

from __future__ import annotations

from math import prod

from perfmodel.graph.opgraph.edits.batch.sizes import Dims, Size, fixed
from perfmodel.graph.ops import BACKWARD, Op, OpGraph, Tensor

_LAYERS = {"aten::linear": (0, (1, 2)), "aten::addmm": (1, (2, 0))}
"""Position of the rows, and of weight and bias."""
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1}
_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_MATRIX = 2
_SHOWN = 5
_GUESSED = (
    "tensors have no ids: which sizes are the batch's is told by layers and values alone; "
    "an execution trace tells it exactly"
)


class Anonymous:
    """What the layers of a profile say of rows and parameters."""

    def __init__(self, graph: OpGraph, batch: int) -> None:
        self._batch = batch
        self._rows: set[int] = set()
        self._parameters: set[tuple[int, ...]] = set()
        for op in graph.ops:
            if op.name in _CONVOLUTIONS:
                self._parameters |= {t.shape for t in op.tensors[1:]}
            layer = _LAYERS.get(op.name)
            if layer is None or op.phase == BACKWARD:
                continue
            rows = _tensor(op, layer[0])
            if rows is not None and len(rows.shape) > 1 and rows.tensor_id < 0:
                self._rows.add(prod(rows.shape[:-1]))
                weights = [_tensor(op, position) for position in layer[1]]
                self._parameters |= {t.shape for t in weights if t is not None}
        self._parameters |= {shape[::-1] for shape in self._parameters}

    def undone(self) -> list[str]:
        """What of a change of the batch is a guess, or is left out."""
        if not self._rows:
            return []
        found = [_GUESSED]
        odd = sorted(rows for rows in self._rows if rows % self._batch)
        if odd:
            shown = ", ".join(map(str, odd[:_SHOWN]))
            found.append(f"layers of {shown} rows, no multiple of {self._batch}: kept; see `old=`")
        return found

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor has the shape of a parameter, and does not begin with the batch."""
        lead = tensor.shape[0] if tensor.shape else 0
        is_rows = lead == self._batch or (lead in self._rows and len(tensor.shape) > 1)
        return tensor.tensor_id < 0 and tensor.shape in self._parameters and not is_rows

    def product(self, op: Op, position: int) -> Dims | None:
        """Sizes of an operand of a matrix product; None for what is none."""
        at = _PRODUCTS.get(op.name)
        if at is None or not at <= position <= at + 1:
            return None
        left, right = _tensor(op, at), _tensor(op, at + 1)
        if left is None or right is None or left.tensor_id >= 0:
            return None
        if len(left.shape) != _MATRIX or len(right.shape) != _MATRIX:
            return None
        is_left = position == at
        rows = self._scaled(left.shape[0])
        inner = self._scaled(left.shape[1])
        if inner is not None and op.phase == BACKWARD and (rows is None or _turned(left)):
            return (Size(0, left.shape[0]), inner) if is_left else (inner, Size(0, right.shape[1]))
        if rows is not None:
            return (rows, Size(0, left.shape[1])) if is_left else fixed(right.shape)
        return None

    def _scaled(self, size: int) -> Size | None:
        """A number of rows as so many per sample."""
        if size not in self._rows or size % self._batch:
            return None
        return Size(size // self._batch, 0)


def _tensor(op: Op, position: int) -> Tensor | None:
    item = op.inputs[position] if position < len(op.inputs) else None
    return item if isinstance(item, Tensor) else None


def _turned(tensor: Tensor) -> bool:
    """Whether a matrix is read along its columns, as a transposed one is."""
    return len(tensor.strides) == _MATRIX and tensor.strides[0] == 1 < tensor.strides[1]
