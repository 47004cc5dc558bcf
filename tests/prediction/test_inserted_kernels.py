"""Kernels put around a collective of a measured graph."""

from __future__ import annotations

import numpy as np
from tiny import COMMS, NCCL, Tiny

from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.payload_codec import CollectiveNeighbours, with_kernels
from perfmodel.timeline.schedule import schedule


def _graph() -> ExecutionGraph:
    """A kernel, an exchange of what it made, a kernel beside it, and one that reads it."""
    t = Tiny()
    t.step(1, 0, 500)
    t.around_an_exchange("aten::mm", "exchange", ("make", "beside", "read"))
    return t.graph()


def _times(graph: ExecutionGraph, name: str) -> tuple[float, float]:
    at = graph.labels.index(name)
    timeline = schedule(graph)
    return float(timeline.start_us[at]), float(timeline.end_us[at])


def test_before_beside_and_behind() -> None:
    graph = _graph()
    node = graph.labels.index(NCCL)
    one = CollectiveNeighbours(node, node, [("encode", 7.0)], [("mask", 30.0)], [("decode", 5.0)])
    edited = with_kernels(graph, [one])
    assert len(edited) == len(graph) + 3
    encode, mask, decode = (_times(edited, name) for name in ("encode", "mask", "decode"))
    exchange, beside, read = (_times(edited, name) for name in (NCCL, "beside", "read"))
    assert encode[0] >= _times(edited, "make")[1]
    assert exchange[0] >= encode[1]
    assert mask[0] >= encode[1]
    assert exchange[0] < mask[1]
    assert beside[0] >= mask[1]
    assert decode[0] >= exchange[1]
    assert read[0] >= decode[1]
    assert read[0] - _times(graph, "read")[0] >= 7 + 5
    assert edited.resources[edited.nodes_.resource[edited.labels.index("encode")]].endswith("7")


def test_without_kernels_the_graph_is_the_same() -> None:
    graph = _graph()
    assert with_kernels(graph, []) is graph


def test_a_collective_alone_has_them_on_its_own_stream() -> None:
    t = Tiny()
    t.step(1, 0, 300)
    t.op("exchange", 10, 20)
    t.launch(13, 15, kernel=(20, 120), name=NCCL, stream=COMMS)
    t.op("exchange", 20, 30)
    t.launch(23, 25, kernel=(121, 221), name=NCCL, stream=COMMS)
    graph = t.graph()
    first, second = (at for at, label in enumerate(graph.labels) if label == NCCL)
    edited = with_kernels(graph, [CollectiveNeighbours(first, first, (), (), [("decode", 50.0)])])
    start = schedule(edited).start_us
    np.testing.assert_allclose(start[second] - schedule(graph).start_us[second], 50, atol=2)
