"""Embedding bags, and elements picked by index."""

from __future__ import annotations

from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.creation import new_zeros
from perfmodel.workload.eager.embedding import embedding_bag_backward
from perfmodel.workload.eager.joins import index_views
from perfmodel.workload.eager.recorder import Recorder


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
    out = new_zeros(r, gradient, node.inputs[0].shape, gradient.dtype)
    r.begin("aten::_index_put_impl_", out, (None, rows, columns), gradient, True, True)
    index_views(r, out, rows, columns)
    r.end(out)
    return [out]
