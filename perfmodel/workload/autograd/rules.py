"""How PyTorch's operators are differentiated: elementwise ones, products, views, lookups."""

from __future__ import annotations

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.arithmetic import MEAN, bmm, mm, mul, scalar_in_place
from perfmodel.workload.eager.creation import copy, empty_like, to_dtype, zero
from perfmodel.workload.eager.embedding_bag import (
    embedding_bag_backward,
    full_slice_backward,
    index_backward,
)
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule_of_one
from perfmodel.workload.eager.views import (
    CONTIGUOUS,
    narrow,
    reshape,
    select,
    squeeze,
    t,
    transpose,
    unsqueeze,
)


@rule_of_one("aten::relu", "ReluBackward0")
def _relu(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [_from(r, "aten::threshold_backward", gradient, node.saved[0], 0)]


@rule_of_one("aten::sigmoid", "SigmoidBackward0")
def _sigmoid(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [_from(r, "aten::sigmoid_backward", gradient, node.saved[0])]


@rule_of_one("aten::add", "AddBackward0")
def _add(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [gradient, gradient]


@rule_of_one("aten::mul", "MulBackward0")
def _mul(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, y = node.saved
    return [
        mul(r, gradient, other) if wanted else None
        for other, wanted in zip((y, x), node.wants, strict=True)
    ]


@rule_of_one("aten::native_dropout", "NativeDropoutBackward0")
def _dropout(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    (mask,) = node.saved
    out = r.tensor(gradient.shape, gradient.dtype)
    r.leaf("aten::native_dropout_backward", (gradient, mask), out)
    return [out]


@rule_of_one("aten::_to_copy", "ToCopyBackward0")
def _to_copy(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [to_dtype(r, gradient, node.inputs[0].dtype)]


@rule_of_one("aten::binary_cross_entropy", "BinaryCrossEntropyBackward0")
def _bce(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, target = node.saved
    r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
    out = empty_like(r, x, None)
    for operand in (out, gradient, x, target):
        squeeze(r, operand)
    scalar_in_place(r, "aten::div_", out, out.elements)
    r.end(out)
    return [out]


@rule_of_one("aten::binary_cross_entropy_with_logits", "BinaryCrossEntropyWithLogitsBackward0")
def _bce_with_logits(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, target = node.saved
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::sigmoid", (x,), out)
    r.leaf("aten::sub_", (out, target, 1), out)
    r.leaf("aten::mul_", (out, gradient), out)
    scalar_in_place(r, "aten::div_", out, out.elements)
    return [out]


@rule_of_one("aten::mse_loss", "MseLossBackward0")
def _mse(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, target = node.saved
    r.begin("aten::mse_loss_backward", gradient, x, target, MEAN)
    out = empty_like(r, x, CONTIGUOUS)
    zero(r, out)
    r.end(out)
    return [out]


def _from(r: Recorder, name: str, gradient: Tensor | None, saved: Tensor, *rest: int) -> Tensor:
    out = r.tensor(saved.shape, saved.dtype)
    r.leaf(name, (gradient, r.view(saved, saved.shape, saved.strides), *rest), out)
    return out


@rule_of_one("aten::addmm", "AddmmBackward0")
def _addmm(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, y = node.saved
    _, wants_x, wants_y = node.wants
    return [
        gradient,
        _left(r, gradient, x, y) if wants_x else None,
        _right(r, gradient, x, y) if wants_y else None,
    ]


@rule_of_one("aten::mm", "MmBackward0")
def _mm(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, y = node.saved
    wants_x, wants_y = node.wants
    right = _right(r, gradient, x, y) if wants_y else None
    return [_left(r, gradient, x, y) if wants_x else None, right]


@rule_of_one("aten::bmm", "BmmBackward0")
def _bmm(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    x, y = node.saved
    right = bmm(r, transpose(r, x, 1, 2), gradient)
    return [bmm(r, gradient, transpose(r, y, 1, 2)), right]


def _left(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `x`, in the layout of `x`."""
    if _is_column_major(x):
        return t(r, mm(r, y, t(r, gradient)))
    return mm(r, gradient, t(r, y))


def _right(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `y`, in the layout of `y`: of a transposed weight, transposed."""
    if _is_column_major(y):
        return t(r, mm(r, t(r, gradient), x))
    return mm(r, t(r, x), gradient)


def _is_column_major(x: Tensor) -> bool:
    return x.strides == (1, x.shape[0])


@rule_of_one("aten::t", "TBackward0")
def _t(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [t(r, gradient)]


@rule_of_one("aten::transpose", "TransposeBackward0")
def _transpose(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    first, second = node.saved
    return [transpose(r, gradient, first, second)]


@rule_of_one("aten::reshape", "ViewBackward0")
def _reshape(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [reshape(r, gradient, node.inputs[0].shape)]


@rule_of_one("aten::unsqueeze", "UnsqueezeBackward0")
def _unsqueeze(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [squeeze(r, gradient, node.saved[0])]


@rule_of_one("aten::squeeze", "SqueezeBackward1")
def _squeeze(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [unsqueeze(r, gradient, node.saved[0] % len(node.inputs[0].shape))]


@rule_of_one("aten::select", "SelectBackward0")
def _select(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Zeros, and the gradient in its place among them."""
    dim, index = node.saved
    out = r.tensor(node.inputs[0].shape, gradient.dtype)
    zero(r, out)
    copy(r, select(r, out, dim, index), gradient)
    return [out]


@rule_of_one("aten::cat", "CatBackward0")
def _cat(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    (dim,) = node.saved
    parts, start = [], 0
    for x, wanted in zip(node.inputs, node.wants, strict=True):
        length = x.shape[dim]
        parts.append(narrow(r, gradient, dim, start, length) if wanted else None)
        start += length
    return parts


@rule_of_one("aten::stack", "StackBackward0")
def _stack(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    (dim,) = node.saved
    return [select(r, gradient, dim, number) for number in range(len(node.inputs))]


@rule_of_one("aten::embedding_bag", "EmbeddingBagBackward0")
def _embedding_bag(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    *saved, attributes = node.saved
    flat, offsets, bag_of, sizes, most = saved
    return [
        embedding_bag_backward(
            r, gradient, node.inputs[0], (flat, offsets, bag_of, sizes, most), attributes
        )
    ]


@rule_of_one("aten::index", "IndexBackward0")
def _index(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    rows, columns = node.saved
    return [index_backward(r, gradient, node.inputs[0], rows, columns)]


@rule_of_one("aten::slice", "SliceBackward0")
def _slice(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    return [full_slice_backward(r, gradient)]
