"""Embedding bags, and elements picked by index."""

from __future__ import annotations

from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.embedding import embedding_bag_backward
from perfmodel.workload.eager.indexing import index_backward, whole_backward
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
    return [index_backward(r, gradient, node.inputs[0], rows, columns)]


@rule("aten::slice", "SliceBackward0")
def _slice(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and whole_backward(r, gradient)]
