"""Every workload of the catalogue is lowered without the fallback."""

from __future__ import annotations

import pytest

from perfmodel.hardware.parts import Target
from perfmodel.lowering import lower
from perfmodel.workload import load_workload, op_graph, workloads


@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("target", ["cuda", "rocm"])
def test_workload(name: str, target: Target) -> None:
    found = lower(op_graph(load_workload(name), target=target), target)
    assert not found.unknown
    assert not any(piece.guessed for piece in found.pieces)
    for op, index in found.rows.groups():
        found.rows.dims_of(op, index)
