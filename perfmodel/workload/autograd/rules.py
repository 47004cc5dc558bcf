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
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule
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


@rule("aten::relu", "ReluBackward0")
def _relu(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [_from(r, "aten::threshold_backward", gradients[0], node.saved[0], 0)]


@rule("aten::sigmoid", "SigmoidBackward0")
def _sigmoid(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [_from(r, "aten::sigmoid_backward", gradients[0], node.saved[0])]


@rule("aten::add", "AddBackward0")
def _add(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [gradients[0], gradients[0]]


@rule("aten::mul", "MulBackward0")
def _mul(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    return [
        mul(r, gradient, other) if wanted else None
        for other, wanted in zip((y, x), node.wants, strict=True)
    ]


@rule("aten::native_dropout", "NativeDropoutBackward0")
def _dropout(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,), (mask,) = gradients, node.saved
    assert gradient is not None
    out = r.tensor(gradient.shape, gradient.dtype)
    r.leaf("aten::native_dropout_backward", (gradient, mask), out)
    return [out]


@rule("aten::_to_copy", "ToCopyBackward0")
def _to_copy(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and to_dtype(r, gradient, node.inputs[0].dtype)]


@rule("aten::binary_cross_entropy", "BinaryCrossEntropyBackward0")
def _bce(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, target = node.saved
    r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
    out = empty_like(r, x, None)
    for operand in (out, gradient, x, target):
        squeeze(r, operand)
    scalar_in_place(r, "aten::div_", out, out.elements)
    r.end(out)
    return [out]


@rule("aten::binary_cross_entropy_with_logits", "BinaryCrossEntropyWithLogitsBackward0")
def _bce_with_logits(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    x, target = node.saved
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::sigmoid", (x,), out)
    r.leaf("aten::sub_", (out, target, 1), out)
    r.leaf("aten::mul_", (out, gradients[0]), out)
    scalar_in_place(r, "aten::div_", out, out.elements)
    return [out]


@rule("aten::mse_loss", "MseLossBackward0")
def _mse(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    x, target = node.saved
    r.begin("aten::mse_loss_backward", gradients[0], x, target, MEAN)
    out = empty_like(r, x, CONTIGUOUS)
    zero(r, out)
    r.end(out)
    return [out]


def _from(r: Recorder, name: str, gradient: Tensor | None, saved: Tensor, *rest: int) -> Tensor:
    out = r.tensor(saved.shape, saved.dtype)
    r.leaf(name, (gradient, r.view(saved, saved.shape, saved.strides), *rest), out)
    return out


@rule("aten::addmm", "AddmmBackward0")
def _addmm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    _, wants_x, wants_y = node.wants
    return [
        gradient,
        _left(r, gradient, x, y) if wants_x else None,
        _right(r, gradient, x, y) if wants_y else None,
    ]


@rule("aten::mm", "MmBackward0")
def _mm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    wants_x, wants_y = node.wants
    right = _right(r, gradient, x, y) if wants_y else None
    return [_left(r, gradient, x, y) if wants_x else None, right]


@rule("aten::bmm", "BmmBackward0")
def _bmm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
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


@rule("aten::t", "TBackward0")
def _t(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and t(r, gradient)]


@rule("aten::transpose", "TransposeBackward0")
def _transpose(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    first, second = node.saved
    return [gradient and transpose(r, gradient, first, second)]


@rule("aten::reshape", "ViewBackward0")
def _reshape(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and reshape(r, gradient, node.inputs[0].shape)]


@rule("aten::unsqueeze", "UnsqueezeBackward0")
def _unsqueeze(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and squeeze(r, gradient, node.saved[0])]


@rule("aten::squeeze", "SqueezeBackward1")
def _squeeze(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and unsqueeze(r, gradient, node.saved[0] % len(node.inputs[0].shape))]


@rule("aten::select", "SelectBackward0")
def _select(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Zeros, and the gradient in its place among them."""
    (gradient,) = gradients
    assert gradient is not None
    dim, index = node.saved
    out = r.tensor(node.inputs[0].shape, gradient.dtype)
    zero(r, out)
    copy(r, select(r, out, dim, index), gradient)
    return [out]


@rule("aten::cat", "CatBackward0")
def _cat(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    (dim,) = node.saved
    parts, start = [], 0
    for x, wanted in zip(node.inputs, node.wants, strict=True):
        length = x.shape[dim]
        parts.append(narrow(r, gradient, dim, start, length) if wanted else None)
        start += length
    return parts


@rule("aten::stack", "StackBackward0")
def _stack(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    (dim,) = node.saved
    return [select(r, gradient, dim, number) for number in range(len(node.inputs))]


@rule("aten::embedding_bag", "EmbeddingBagBackward0")
def _embedding_bag(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    *saved, attributes = node.saved
    flat, offsets, bag_of, sizes, most = saved
    return [
        embedding_bag_backward(
            r, gradient, node.inputs[0], (flat, offsets, bag_of, sizes, most), attributes
        )
    ]


@rule("aten::index", "IndexBackward0")
def _index(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    rows, columns = node.saved
    return [index_backward(r, gradient, node.inputs[0], rows, columns)]


@rule("aten::slice", "SliceBackward0")
def _slice(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and full_slice_backward(r, gradient)]
