"""Ratios of whole ops between two machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from perfmodel.cost.durations import durations_of
from perfmodel.hardware import Cluster, cluster
from perfmodel.lowering import lower
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.prediction.ratios import (
    COLLECTIVE,
    COPY,
    KERNEL,
    KINDS,
    OpPieces,
    Source,
    sums_by_op,
)

V100, MI300X = cluster("v100-sxm2-16gb"), cluster("mi300x")
X = Tensor((4096, 4096), device="cuda:0")
RELU, MM = Op("aten::relu", (X,)), Op("aten::mm", (X, X))


class OpRatio(NamedTuple):
    modelled: float
    unexplained: float


def _taken_us(graph: OpGraph, machine: Cluster) -> float:
    device = machine.node.device
    rows = lower(graph, device.target, device=device).rows
    return float(durations_of(rows, machine).duration_us.sum())


def _ratios(
    graph: OpGraph, measured_us: list[float] | None = None, target: Cluster = MI300X
) -> Callable[[int, str], OpRatio | None]:
    """From a V100, where the kernels of each op took `measured_us`."""
    before, after = (OpPieces.on(graph, machine) for machine in (V100, target))
    taken = np.array(measured_us or [0.0] * len(graph))
    kind = np.full(len(graph), KINDS.index(KERNEL))
    measured = sums_by_op(graph, kind, np.arange(len(graph)), taken)
    there = after.by_op(after.duration_us(target))
    source = Source.of(before, V100, measured)

    def ratio(op: int, kind: str) -> OpRatio | None:
        chosen = source.compared(op, kind, there)
        if chosen is None:
            return None
        modelled = chosen.sum_us(there) / chosen.sum_us(source.modelled)
        return OpRatio(modelled, source.unexplained_log(chosen))

    return ratio


def _modelled(found: OpRatio | None) -> float:
    assert found is not None
    return found.modelled


def test_an_op_by_its_own_pieces() -> None:
    graph = OpGraph((RELU, MM))
    ratio = _ratios(graph)
    for at, op in enumerate(graph.ops):
        alone = OpGraph((op,))
        expected = _taken_us(alone, MI300X) / _taken_us(alone, V100)
        assert _modelled(ratio(at, KERNEL)) == pytest.approx(expected)


def test_the_same_machine_takes_the_same() -> None:
    assert _modelled(_ratios(OpGraph((MM,)), target=V100)(0, KERNEL)) == 1.0


def test_a_call_without_pieces_goes_with_what_it_is_called_by_or_calls() -> None:
    inner = Op("aten::size", (X,), parent=0)
    graph = OpGraph((Op("module", (), ()), inner, Op("aten::relu", (X,), parent=0)))
    ratio = _ratios(graph)
    assert ratio(0, KERNEL) == ratio(1, KERNEL) == ratio(2, KERNEL)


def test_what_no_model_knows_has_no_ratio() -> None:
    graph = OpGraph((Op("mylib::mystery", (X,)),))
    ratio = _ratios(graph)
    assert ratio(0, KERNEL) is None
    assert ratio(0, COLLECTIVE) is None


def test_a_copy_that_is_a_kernel_elsewhere_goes_by_both() -> None:
    ratio = _ratios(OpGraph((RELU,)))
    assert ratio(0, COPY) == ratio(0, KERNEL)
    assert ratio(0, COLLECTIVE) is None


def test_what_the_model_does_not_say_of_the_source_is_a_logarithm() -> None:
    graph = OpGraph((MM,))
    found = _ratios(graph, [3 * _taken_us(graph, V100)])(0, KERNEL)
    assert found is not None
    assert found.unexplained == pytest.approx(np.log(3))


def test_all_kernels_of_what_is_compared_count() -> None:
    """An op without pieces goes by its caller, whose other callee was measured too."""
    graph = OpGraph((Op("module"), Op("aten::size", (X,), parent=0), Op(MM.name, (X, X), parent=0)))
    us = _taken_us(graph, V100)
    found = _ratios(graph, [0.0, us, us])(1, KERNEL)
    assert found is not None
    assert found.unexplained == pytest.approx(np.log(2))


def test_of_rows_of_a_table_the_measured_time_knows_more_than_shapes() -> None:
    index = Tensor((65_536,), "int64", device="cuda:0")
    graph = OpGraph((Op("aten::index_select", (X, 0, index)),))
    found = _ratios(graph, [10 * _taken_us(graph, V100)])(0, KERNEL)
    assert found is not None
    assert found.unexplained == 0.0
