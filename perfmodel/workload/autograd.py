"""From a forward pass to its backward pass: the engine, and how PyTorch's operators are
differentiated. The engine runs ready nodes, the one recorded last first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from perfmodel.ops.graph import AUTOGRAD_NODE, BACKWARD, Tensor
from perfmodel.trace.window import AUTOGRAD_THREAD
from perfmodel.workload.eager.arithmetic import MEAN, bmm, mm, mul, scalar_in_place, sum_to
from perfmodel.workload.eager.creation import copy, empty_like, ones_like, to_dtype, zero
from perfmodel.workload.eager.embedding_bag import (
    accumulate_sparse,
    embedding_bag_backward,
    full_slice_backward,
    index_backward,
)
from perfmodel.workload.eager.recorder import (
    ACCUMULATE,
    Gradients,
    Node,
    Recorder,
    rule_of_one,
)
from perfmodel.workload.eager.views import (
    CONTIGUOUS,
    detach,
    narrow,
    reshape,
    select,
    squeeze,
    t,
    transpose,
    unsqueeze,
)

Hook = Callable[[Recorder, Tensor, Tensor], None]
"""Called with a parameter and its gradient as soon as that is there."""


def backward(r: Recorder, loss: Tensor, hook: Hook | None = None) -> dict[int, Tensor]:
    """The backward pass from `loss`; gradients of the parameters by their tensor id.

    On a GPU it runs on a thread of its own, on a CPU on the thread that called it.
    """
    tape, r.tape = r.tape, None
    root = tape.maker(loss) if tape else None
    if root is None:
        return {}
    gradients: dict[int, Tensor] = {}
    root[0].gradients[root[1]] = ones_like(r, loss, pinned=False)
    with r.during(BACKWARD):
        thread = r.thread
        r.thread = thread if r.is_cpu else AUTOGRAD_THREAD
        _run(r, root[0], gradients, hook)
        r.thread = thread
    return gradients


def _run(r: Recorder, root: Node, gradients: dict[int, Tensor], hook: Hook | None) -> None:
    _count(root)
    ready = [(-root.sequence, 0, root)]
    arrived = 0
    while ready:
        node = heappop(ready)[-1]
        if r.is_bare:
            _run_inner(r, node, gradients, hook)
        else:
            r.begin(f"{AUTOGRAD_NODE}{node.name}")
            if node.rule is None:
                _accumulate(r, node, gradients, hook)
            else:
                _evaluate(r, node)
            r.end()
        for edge in node.next:
            if edge is None:
                continue
            edge[0].waiting -= 1
            if edge[0].waiting == 0:
                arrived += 1
                heappush(ready, (-edge[0].sequence, arrived, edge[0]))


def _run_inner(r: Recorder, node: Node, reached: dict[int, Tensor], hook: Hook | None) -> None:
    """A node without what PyTorch puts around it."""
    gradients = [node.gradients.get(number) for number in range(node.outputs)]
    if node.rule is not None:
        _pass_on(r, node, list(node.rule(r, node, gradients)))
    elif gradients[0] is not None:
        reached[node.inputs[0].tensor_id] = gradients[0]
        if hook is not None:
            hook(r, node.inputs[0], gradients[0])


def _evaluate(r: Recorder, node: Node) -> None:
    """Run a node, then hand its results on."""
    gradients = [node.gradients.get(number) for number in range(node.outputs)]
    given = [gradient for gradient in gradients if gradient is not None]
    r.begin(node.name, *given)
    assert node.rule is not None
    results = list(node.rule(r, node, gradients))
    r.end()
    _pass_on(r, node, results)


def _pass_on(r: Recorder, node: Node, results: list[Tensor | None]) -> None:
    """Gradients to the nodes that wait for them."""
    for number, (edge, result) in enumerate(zip(node.next, results, strict=True)):
        if edge is not None and result is not None and result.shape != node.inputs[number].shape:
            results[number] = sum_to(r, result, node.inputs[number].shape)
    for edge, result in zip(node.next, results, strict=True):
        if edge is None or result is None:
            continue
        target, number = edge
        before = target.gradients.get(number)
        target.gradients[number] = result if before is None else _added(r, before, result)


def _added(r: Recorder, before: Tensor, more: Tensor) -> Tensor:
    """The sum of two gradients: into the first where nothing else can see that."""
    if r.owns(before):
        r.leaf("aten::add_", (before, more, 1), before)
        return before
    out = r.tensor(before.shape, before.dtype)
    r.leaf("aten::add", (before, more, 1), out)
    return out


def _accumulate(r: Recorder, node: Node, gradients: dict[int, Tensor], hook: Hook | None) -> None:
    """The gradient of a parameter becomes its `.grad`; one updated in backward has none."""
    gradient = node.gradients.get(0)
    if gradient is None:
        r.leaf(ACCUMULATE, ())
        return
    r.begin(ACCUMULATE, gradient)
    kept = accumulate_sparse(r, gradient) if gradient.layout else detach(r, gradient)
    r.end()
    parameter = node.inputs[0]
    gradients[parameter.tensor_id] = kept
    if hook is not None:
        hook(r, parameter, kept)


def _count(root: Node) -> None:
    """How many gradients each node waits for."""
    seen = {id(root)}
    left = [root]
    while left:
        for edge in left.pop().next:
            if edge is None:
                continue
            edge[0].waiting += 1
            if id(edge[0]) not in seen:
                seen.add(id(edge[0]))
                left.append(edge[0])


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
