"""Which products run with a split contraction: the rule beside the kernels of real traces."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import perfmodel
from perfmodel.lowering import lower
from perfmodel.lowering.observed import answered_by, with_placement
from perfmodel.lowering.rules.convolution import is_split
from perfmodel.ops.read import op_graph

OPS = ("aten::mm", "aten::addmm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "shapes"),
    [
        ("dlrm_v100x8", 16, 19),
        ("dlrm_meta/a100x8_trace_diff_control.json.gz", 119, 132),
        ("dlrm_meta/gpu128_sampled_rank0.json.gz", 137, 150),
    ],
)
def test_the_rule_is_right_for_most_shapes(
    reference: Path, name: str, right: int, shapes: int
) -> None:
    trace = perfmodel.read(reference / "traces" / name)
    rank, links = trace.ranks[0], trace.links[0]
    lowered = lower(with_placement(op_graph(trace)[0], rank, links), "cuda")
    kernels = defaultdict(list)
    owners = answered_by(lowered, rank, links).tolist()
    for row, owner in zip(links.device_rows.tolist(), owners, strict=True):
        kernels[owner].append(rank.text(row).lower())
    agree = defaultdict(list)
    for piece, owner in zip(lowered.pieces, lowered.owner.tolist(), strict=True):
        if lowered.graph.ops[owner].name in OPS and piece.op in ("mm", "linear") and kernels[owner]:
            split = any("splitk" in kernel for kernel in kernels[owner])
            shape = (piece.op, *(piece.dims[name] for name in "mnk"))
            agree[shape].append(split == is_split(piece))
    found = [2 * sum(calls) > len(calls) for calls in agree.values()]
    assert (sum(found), len(found)) == (right, shapes)
