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
from perfmodel.prediction.transferred import OpPieces, Source, members

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
) -> Callable[..., OpRatio | None]:
    """From a V100, where the kernels of each op took `measured_us`."""
    every, taken = np.arange(len(graph)), np.array(measured_us or [0.0] * len(graph))
    measured = members(graph, every, np.zeros(len(graph), bool))
    source, after = Source(graph, V100, measured, taken), OpPieces.on(graph, target)

    def ratio(op: int, is_collective: bool = False) -> OpRatio | None:
        if (chosen := source.compared((op, is_collective), after)) is None:
            return None
        here_us, unexplained = source.modelled(chosen)
        there_us = durations_of(after.rows, target).duration_us[after.of_op[chosen]].sum()
        return OpRatio(there_us / here_us, unexplained)

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
        assert _modelled(ratio(at)) == pytest.approx(expected)


def test_the_same_machine_takes_the_same() -> None:
    assert _modelled(_ratios(OpGraph((MM,)), target=V100)(0)) == 1.0


def test_a_call_without_pieces_goes_with_what_it_is_called_by_or_calls() -> None:
    inner = Op("aten::size", (X,), parent=0)
    graph = OpGraph((Op("module", (), ()), inner, Op("aten::relu", (X,), parent=0)))
    ratio = _ratios(graph)
    assert ratio(0) == ratio(1) == ratio(2)


def test_what_no_model_knows_has_no_ratio() -> None:
    graph = OpGraph((Op("mylib::mystery", (X,)),))
    ratio = _ratios(graph)
    assert ratio(0) is None
    assert ratio(0, True) is None


def test_collectives_go_by_collectives_alone() -> None:
    assert _ratios(OpGraph((RELU,)))(0, True) is None


def test_what_the_model_does_not_say_of_the_source_is_a_logarithm() -> None:
    graph = OpGraph((MM,))
    found = _ratios(graph, [3 * _taken_us(graph, V100)])(0)
    assert found is not None
    assert found.unexplained == pytest.approx(np.log(3))


def test_all_kernels_of_what_is_compared_count() -> None:
    """An op without pieces goes by its caller, whose other callee was measured too."""
    graph = OpGraph((Op("module"), Op("aten::size", (X,), parent=0), Op(MM.name, (X, X), parent=0)))
    us = _taken_us(graph, V100)
    found = _ratios(graph, [0.0, us, us])(1)
    assert found is not None
    assert found.unexplained == pytest.approx(np.log(2))


def test_of_rows_of_a_table_the_measured_time_knows_more_than_shapes() -> None:
    index = Tensor((65_536,), "int64", device="cuda:0")
    graph = OpGraph((Op("aten::index_select", (X, 0, index)),))
    found = _ratios(graph, [10 * _taken_us(graph, V100)])(0)
    assert found is not None
    assert found.unexplained == 0.0
