"""All-to-alls of a narrower type: what is put in, where, and what waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import WorkloadError
from perfmodel.lowering import lower
from perfmodel.ops.edits.named import exchange
from perfmodel.ops.graph import Op, OpGraph, Tensor

X = Tensor((1024,), device="cuda:0")
ABOUT = {
    "collective": "all_to_all",
    "group_size": "8",
    "dtype": "fp32",
    "in_elements": "1024",
    "out_elements": "2048",
}
GRAPH = OpGraph(
    (
        Op("aten::relu", (X,)),
        Op("c10d::alltoall_base_", (X, X)),
        Op("record_param_comms", (X,), parent=1, attributes=ABOUT),
        Op("aten::neg", (X,)),
        Op("aten::exp", (X,)),
    ),
    np.array([[0, 1], [2, 4]]),
)
"""What is exchanged is read by the last op."""


def _names(graph: OpGraph) -> list[str]:
    return [op.name.partition("::")[2] or op.name for op in graph.ops]


def test_encoded_before_the_call_and_decoded_before_what_reads_it() -> None:
    graph, skipped = exchange(GRAPH, "fp16")
    assert _names(graph) == [
        *("relu", "clamp", "copy_", "alltoall_base_", "record_param_comms"),
        *("neg", "copy_", "exp"),
    ]
    assert skipped == ("no gradient of a clamp",)
    encode, decode = graph.ops[2], graph.ops[6]
    assert [t.dtype for t in encode.tensors] == ["fp16", "fp32"]
    assert [t.dtype for t in decode.tensors] == ["fp32", "fp16"]
    assert decode.tensors[0].shape == (2048,)
    assert graph.data.tolist() == [[0, 3], [4, 7], [4, 6]]
    exchanged = [piece for piece in lower(graph, "cuda").pieces if piece.op == "all_to_all"]
    assert [piece.dims["size_bytes"] for piece in exchanged] == [2 * 2048.0]


def test_bf16_reaches_as_far_as_fp32_and_is_not_clamped() -> None:
    graph, skipped = exchange(GRAPH, "bf16")
    assert "clamp" not in _names(graph)
    assert not skipped


def test_waits_count_before_data_and_without_either_it_follows_the_call() -> None:
    waits = replace(GRAPH, data=np.empty((0, 2), np.int64), waits=np.array([[2, 3]]))
    graph, _ = exchange(waits, "bf16")
    assert _names(graph)[4:] == ["copy_", "neg", "exp"]
    assert graph.waits is not None
    assert graph.waits.tolist() == [[3, 5], [3, 4]]
    nothing = replace(GRAPH, data=np.empty((0, 2), np.int64))
    graph, _ = exchange(nothing, "bf16")
    assert _names(graph)[4:] == ["copy_", "neg", "exp"]
    assert not len(graph.data)


def test_what_is_not_fp32_stays_and_other_types_are_refused() -> None:
    narrow = replace(GRAPH, ops=tuple(replace(op, attributes={}) for op in GRAPH.ops))
    found = exchange(narrow, "fp16")
    assert found.graph is narrow
    assert found.skipped == ("no all-to-all of fp32",)
    with pytest.raises(WorkloadError, match="cannot exchange 'fp8'; one of fp16, bf16"):
        exchange(GRAPH, "fp8")
