"""What launches tell of where tensors lay."""

from __future__ import annotations

import pytest
from tiny import Tiny

from perfmodel.lowering import lower
from perfmodel.lowering.observed import uses_tf32, with_placement
from perfmodel.ops.graph import Op, OpGraph, Tensor

HOST_COPY = "Memcpy HtoD (Pageable -> Device)"
PINNED_COPY = "Memcpy HtoD (Pinned -> Device)"


@pytest.mark.parametrize(("name", "pinned"), [(HOST_COPY, 0.0), (PINNED_COPY, 1.0)])
def test_copies_and_ops_on_the_host(name: str, pinned: float) -> None:
    t = Tiny()
    t.op("aten::add", 0, 5)
    t.op("aten::copy_", 10, 30)
    t.copy(15, 20, copy=(40, 60), name=name)
    rank, links = t.linked()
    rows = {rank.text(row): int(row) for row in range(len(rank))}
    values = Tensor((4,))
    graph = OpGraph(
        (
            Op("aten::add", (values, values, 1), event=rows["aten::add"]),
            Op("aten::copy_", (values, values, False), event=rows["aten::copy_"]),
        )
    )
    pieces = lower(with_placement(graph, rank, links), "cuda").pieces
    assert [(piece.op, piece.dims["pinned"], piece.blocks) for piece in pieces] == [
        ("copy_h2d", pinned, True)
    ]


def test_tf32_by_the_names_of_products() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 30)
    t.launch(5, 10, kernel=(40, 60), name="ampere_sgemm_128x64_nn")
    assert not uses_tf32(t.rank_trace())
    t.launch(15, 20, kernel=(60, 70), name="cutlass_80_tensorop_s1688gemm_128x128_tn")
    t.launch(21, 25, kernel=(70, 90), name="cutlass_80_tensorop_s1688gemm_128x128_tn")
    assert uses_tf32(t.rank_trace())
