"""Ratios of whole ops between two machines."""

from __future__ import annotations

import pytest

from perfmodel.duration import durations_of
from perfmodel.graph.ops import Op, OpGraph, Tensor
from perfmodel.hardware import Cluster, cluster
from perfmodel.lowering import lower
from perfmodel.prediction.ratios import COLLECTIVE, COPY, KERNEL, op_ratios

V100, MI300X = cluster("v100-sxm2-16gb"), cluster("mi300x")
X = Tensor((4096, 4096), device="cuda:0")
RELU, MM = Op("aten::relu", (X,)), Op("aten::mm", (X, X))


def _taken_us(graph: OpGraph, machine: Cluster) -> float:
    device = machine.node.device
    rows = lower(graph, device.target, device=device).rows
    return float(durations_of(rows, machine).duration_us.sum())


def test_an_op_by_its_own_pieces() -> None:
    graph = OpGraph((RELU, MM))
    ratio = op_ratios(graph, V100, MI300X)
    for at, op in enumerate(graph.ops):
        alone = OpGraph((op,))
        assert ratio(at, KERNEL) == pytest.approx(_taken_us(alone, MI300X) / _taken_us(alone, V100))


def test_the_same_machine_takes_the_same() -> None:
    assert op_ratios(OpGraph((MM,)), V100, V100)(0, KERNEL) == 1.0


def test_a_call_without_pieces_goes_with_what_it_is_called_by_or_calls() -> None:
    inner = Op("aten::size", (X,), parent=0)
    graph = OpGraph((Op("module", (), ()), inner, Op("aten::relu", (X,), parent=0)))
    ratio = op_ratios(graph, V100, MI300X)
    each = [ratio(at, KERNEL) for at in range(3)]
    assert each == pytest.approx([each[0]] * 3, rel=1e-9)


def test_what_no_model_knows_has_no_ratio() -> None:
    graph = OpGraph((Op("mylib::mystery", (X,)),))
    ratio = op_ratios(graph, V100, MI300X)
    assert ratio(0, KERNEL) is None
    assert ratio(0, COLLECTIVE) is None


def test_a_copy_that_is_a_kernel_elsewhere_goes_by_both() -> None:
    ratio = op_ratios(OpGraph((RELU,)), V100, MI300X)
    assert ratio(0, COPY) == pytest.approx(ratio(0, KERNEL), rel=1e-9)
    assert ratio(0, COLLECTIVE) is None
