"""The engine of the backward pass: it runs ready nodes, the one recorded last first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from perfmodel.ops.graph import AUTOGRAD_NODE, BACKWARD, Tensor
from perfmodel.trace.window import AUTOGRAD_THREAD
from perfmodel.workload.eager.arithmetic import sum_to
from perfmodel.workload.eager.embedding_bag import accumulate_sparse
from perfmodel.workload.eager.recorder import ACCUMULATE, Gradients, Node, Recorder
from perfmodel.workload.eager.tensors import detach

Hook = Callable[[Recorder, Tensor, Tensor], None]
"""Called with a parameter and its gradient as soon as that is there."""


def backward(r: Recorder, loss: Tensor, hook: Hook | None = None) -> dict[int, Tensor]:
    """The backward pass from `loss`; gradients of the parameters by their tensor id.

    On a GPU it runs on a thread of its own, on a CPU on the thread that called it.
    """
    tape, r.tape = r.tape or {}, None
    if loss.tensor_id not in tape:
        return {}
    root, number = tape[loss.tensor_id]
    ones = r.made("aten::ones_like", (loss,), loss.shape, loss.dtype)
    root.gradients[number] = ones
    with r.during(BACKWARD):
        thread = r.thread
        r.thread = thread if r.is_cpu else AUTOGRAD_THREAD
        reached = _run(r, root, hook)
        r.thread = thread
    return reached


def _run(r: Recorder, root: Node, hook: Hook | None) -> dict[int, Tensor]:
    left, seen = [root], {id(root)}
    while left:  # how many gradients each node waits for
        for node, _ in filter(None, left.pop().next):
            node.waiting += 1
            if id(node) not in seen:
                seen.add(id(node))
                left.append(node)
    reached: dict[int, Tensor] = {}
    ready = [(-root.sequence, 0, root)]
    arrived = 0
    while ready:
        node = heappop(ready)[-1]
        if not r.is_bare:
            r.begin(f"{AUTOGRAD_NODE}{node.name}")
        if node.backward is None:
            _accumulate(r, node, reached, hook)
        else:
            _evaluate(r, node)
        if not r.is_bare:
            r.end()
        for edge in filter(None, node.next):
            edge[0].waiting -= 1
            if edge[0].waiting == 0:
                arrived += 1
                heappush(ready, (-edge[0].sequence, arrived, edge[0]))
    return reached


def _evaluate(r: Recorder, node: Node) -> None:
    """Run a node, then hand its results on: of no gradient follows none."""
    given = [node.gradients[n] for n in range(node.outputs) if n in node.gradients]
    if not r.is_bare:
        r.begin(node.name, *given)
    assert node.backward is not None
    results: Gradients = [None] * len(node.inputs)
    if given:
        results = node.backward(given[0] if node.is_single else given)
    if not r.is_bare:
        r.end()
    results = [
        sum_to(r, result, x.shape) if edge and result and result.shape != x.shape else result
        for edge, x, result in zip(node.next, node.inputs, results, strict=True)
    ]
    for edge, result in zip(node.next, results, strict=True):
        if edge is None or result is None:
            continue
        target, number = edge
        before = target.gradients.setdefault(number, result)
        if before is result:
            continue
        if before.tensor_id in r.views:
            total = r.made("aten::add", (before, result, 1), before.shape, before.dtype)
            target.gradients[number] = total
        else:  # nothing else can see that
            r.leaf("aten::add_", (before, result, 1), before)


def _accumulate(r: Recorder, node: Node, reached: dict[int, Tensor], hook: Hook | None) -> None:
    """The gradient of a parameter becomes its `.grad`; one updated in backward has none."""
    gradient, (parameter,) = node.gradients.get(0), node.inputs
    if gradient is None:
        if not r.is_bare:
            r.leaf(ACCUMULATE, ())
        return
    if not r.is_bare:
        r.begin(ACCUMULATE, gradient)
        gradient = accumulate_sparse(r, gradient) if gradient.layout else detach(r, gradient)
        r.end()
    reached[parameter.tensor_id] = gradient
    if hook is not None:
        hook(r, parameter, gradient)
