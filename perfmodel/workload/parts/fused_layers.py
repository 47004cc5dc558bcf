"""Layers whose elementwise work is fused: in epilogues of matrix products, or in one kernel.

The exchange of pooled rows without copies stands here too: what HugeCTR has and PyTorch has not.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.products import mm
from perfmodel.workload.eager.recorder import Recorder, contiguous
from perfmodel.workload.eager.views import t
from perfmodel.workload.parts.exchange import all_to_all_call
from perfmodel.workload.parts.interaction import Cross
from perfmodel.workload.parts.mlp import Layer
from perfmodel.workload.run import Run

LAYER = "aten::_addmm_activation"
DOT = "fused_dot"


def fused_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str) -> Tensor:
    """`x` through the layers: each one matrix product with bias and ReLU in its epilogue.

    `last` (`relu none`) is what ends the last layer.
    """
    for number, layer in enumerate(stack, 1):
        ending = last if number == len(stack) else "relu"
        x = _product(r, x, layer, f"bias_{ending}")
    return x


@rule(LAYER, "fused_layer_backward")
def _layer_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Two products: the bias gradient and the ReLU mask ride along."""
    (gradient,) = gradients
    assert gradient is not None
    x, weight = node.saved
    wants_x = node.wants[0]
    weight_gradient = mm(r, t(r, gradient), x)
    biases = [r.tensor((weight.shape[0],), gradient.dtype)] * (len(node.inputs) - 2)
    return [mm(r, gradient, weight) if wants_x else None, weight_gradient, *biases]


def fused_dot(r: Recorder, features: Tensor, sparse: Tensor, width: int) -> Tensor:
    """The dot interaction `[batch, width]` in one kernel: joins, multiplies, keeps a half."""
    batch, dim = features.shape
    vectors = sparse.shape[1] + 1
    joined = r.view(sparse, (batch, vectors, dim), contiguous((batch, vectors, dim)))
    turned = r.view(joined, (batch, dim, vectors), (vectors * dim, 1, dim))
    made = r.tensor((batch, vectors, vectors), features.dtype)
    r.leaf("aten::bmm", (joined, turned), made)
    out = r.view(made, (batch, width), (width, 1))
    track(r, DOT, (features, sparse), out, joined)
    return out


@rule(DOT, "fused_dot_backward")
def _dot_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """One product of the mirrored gradient with the vectors."""
    (gradient,) = gradients
    assert gradient is not None
    (joined,) = node.saved
    features, sparse = node.inputs
    batch, vectors, dim = joined.shape
    square = (batch, vectors, vectors)
    mirrored = r.view(gradient, square, contiguous(square))
    out = r.tensor(joined.shape, gradient.dtype)
    r.leaf("aten::bmm", (mirrored, joined), out)
    row = vectors * dim
    return [r.view(out, features.shape, (row, 1)), r.view(out, sparse.shape, (row, dim, 1))]


CROSS = "fused_cross"


def fused_cross(r: Recorder, x: Tensor, crosses: Sequence[Cross]) -> Tensor:
    """Low-rank cross layers: two products each, and one kernel for x0 * high + x."""
    first = x
    for layer in crosses:
        low = r.tensor((x.shape[0], layer.down.shape[0]), x.dtype)
        r.leaf("aten::mm", (x, _transposed(r, layer.down)), low)
        track(r, LAYER, (x, layer.down), low, x, layer.down)
        high = _product(r, low, layer.up, "bias")
        out = r.tensor(x.shape, x.dtype)
        r.leaf("aten::addcmul", (x, first, high, 1), out)
        track(r, CROSS, (first, high, x), out, first, high)
        x = out
    return x


def _product(r: Recorder, x: Tensor, layer: Layer, epilogue: str) -> Tensor:
    out = r.tensor((x.shape[0], layer.weight.shape[0]), x.dtype)
    inputs = (layer.bias, x, _transposed(r, layer.weight), 1, 1, False)
    r.leaf(LAYER, inputs, out, about={"epilogue": epilogue})
    track(r, LAYER, (x, layer.weight, layer.bias), out, x, layer.weight)
    return out


def _transposed(r: Recorder, x: Tensor) -> Tensor:
    return r.view(x, x.shape[::-1], x.strides[::-1])


@rule(CROSS, "fused_cross_backward")
def _cross_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients of x0 and of the product, each one kernel; x gets what came."""
    (gradient,) = gradients
    assert gradient is not None
    first, high = node.saved
    of_first, of_high = (r.tensor(first.shape, first.dtype) for _ in range(2))
    r.leaf("aten::mul", (gradient, high), of_first)
    r.leaf("aten::mul", (gradient, first), of_high)
    return [of_first if node.wants[0] else None, of_high, gradient]


LOSS = "aten::binary_cross_entropy"


def fused_loss(r: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss and its gradient at once."""
    out = r.tensor((), "fp32")
    r.leaf(LOSS, (logits, labels, None, 1), out)
    track(r, "fused_loss", (logits,), out)
    return out


@rule("fused_loss", "fused_loss_backward")
def _loss_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    logits = node.inputs[0]
    return [r.tensor(logits.shape, logits.dtype)]


EXCHANGE = "fused_exchange"


def fused_exchange(r: Recorder, run: Run, pooled: Tensor) -> Tensor:
    """`[global batch, own dims]` -> `[batch, exchanged tables, dim]`.

    Of a table in parts only the sums travel that have a row in the part; one kernel adds them up.
    """
    dim = run.workload.dim
    rows = [round(run.batch * _filled(run, rank)) for rank in range(run.ranks)]
    sizes, own = [count * dim for count in rows], rows[run.rank] * dim
    sent = (
        pooled if own * run.ranks == pooled.elements else r.tensor((own * run.ranks,), pooled.dtype)
    )
    received = r.tensor((sum(rows), dim), pooled.dtype)
    all_to_all_call(r, sent, received, [own] * run.ranks, sizes, is_async=True)
    tables = len({shard.table for shards in run.plan.shards for shard in shards})
    out = r.view(received, (run.batch, tables, dim), (tables * dim, dim, 1))
    if any(shard.parts > 1 for shards in run.plan.shards for shard in shards):
        out = r.tensor((run.batch, tables, dim), pooled.dtype)
        r.leaf("aten::index_add", (out, 0, r.tensor((sum(rows),), "int64"), received, 1), out)
    track(r, EXCHANGE, (pooled,), out, received, sizes, own)
    return out


def _filled(run: Run, rank: int) -> float:
    """Vectors that a sample gets from `rank`: one per shard in which it has a row."""
    tables = run.workload.tables
    return sum(
        1 - (1 - 1 / shard.parts) ** tables[shard.table].pooling if shard.parts > 1 else 1.0
        for shard in run.plan.shards[rank]
    )


@rule(EXCHANGE, "fused_exchange_backward")
def _exchange_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    received, sizes, own = node.saved
    spread = r.tensor(received.shape, gradient.dtype)
    places = r.tensor((received.shape[0],), "int64")
    r.leaf("aten::index_select", (gradient, 0, places), spread)
    back = r.tensor((own * len(sizes),), gradient.dtype)
    all_to_all_call(r, spread, back, sizes, [own] * len(sizes), is_async=True)
    return [r.view(back, node.inputs[0].shape, node.inputs[0].strides)]
