"""Runs a backward pass, of a step or of one op: ready nodes, the one recorded last first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from perfmodel.ops.graph import AUTOGRAD_NODE, BACKWARD, Tensor
from perfmodel.trace.window import AUTOGRAD_THREAD
from perfmodel.workload.eager.arithmetic import sum_to
from perfmodel.workload.eager.creation import ones_like
from perfmodel.workload.eager.embedding_bag import accumulate_sparse
from perfmodel.workload.eager.recorder import ACCUMULATE, Node, Recorder
from perfmodel.workload.eager.views import detach

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
