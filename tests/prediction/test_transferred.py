"""Mode `transfer`: by which ratio each measured kernel goes to another machine."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import GEMM, STREAM, Tiny

from perfmodel.cost.durations import durations_of
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict
from perfmodel.prediction.transferred import carried_frac, transfer_durations, transfer_ratio
from perfmodel.timeline.graph import build_graph

V100, A100 = device("v100-sxm2-16gb"), device("a100-sxm-80gb")
RELU = "void vectorized_elementwise_kernel<relu>"
SIZE = {"m": 2048.0, "k": 1024.0, "n": 1024.0, "b": 1.0}


def _tiny(shapes: bool = True) -> Tiny:
    """A step of a product, and a kernel that was launched before the recording began."""
    tiny = Tiny()
    tiny.step(1, 0, 1000)
    dims = {"Input Dims": [[2048, 1024], [1024, 1024]], "Input type": ["float"] * 2}
    tiny.kernel(1, 101, GEMM, STREAM)
    tiny.op("aten::mm", 10, 40, **(dims if shapes else {}))
    tiny.launch(15, 20, kernel=(110, 510))
    return tiny


def _product_ratio() -> float:
    """Of what the model says, and of half of what it does not: both boards are far apart."""
    rows = Rows.of([{"op": "mm", "dtype": "fp32", "framework": "torch", **SIZE}])
    one, other = (float(durations_of(rows, gpu).duration_us[0]) for gpu in (V100, A100))
    assert carried_frac(V100, A100) == 0.5
    return other / one * (400 / one) ** -0.5


def test_an_op_with_shapes_takes_the_ratio_of_its_models() -> None:
    trace = _tiny().trace()
    graph = build_graph(trace)
    found = transfer_durations(trace, graph, graph.nodes_.duration_us, "a100-sxm-80gb")
    rows = graph.device_span()[1]
    before = transfer_ratio(["matmul"], ["fp32"], V100, A100, duration_us=[100])
    expected = [100 * before[0], 400 * _product_ratio()]
    np.testing.assert_allclose(found.duration_us[rows], expected)
    assert found.modelled_frac == pytest.approx(0.8)
    assert any("80.0 % by models of its op, 20.0 %" in n for n in found.notes)


def test_without_shapes_the_class_decides_and_it_is_said() -> None:
    found = predict(_tiny(shapes=False).trace(), hardware=["a100-sxm-80gb"])
    ratio = transfer_ratio(["matmul"] * 2, ["fp32"] * 2, V100, A100, duration_us=[100, 400])
    result = found.results[0]
    assert result.rank.kernel_sum_us == pytest.approx(ratio @ [100, 400])
    assert result.coverage["modelled_frac"] == 0.0
    assert any("no op has shapes" in line for line in found.warnings)
    assert any("100.0 % by roofline ratio" in line for line in found.warnings)


def test_a_kernel_like_no_other_goes_by_its_class() -> None:
    tiny = _tiny()
    tiny.kernel(520, 620, RELU, STREAM)
    trace = tiny.trace()
    graph = build_graph(trace)
    found = transfer_durations(trace, graph, graph.nodes_.duration_us, "a100-sxm-80gb")
    ratio = transfer_ratio(["elementwise"], [None], V100, A100, duration_us=[100.0])[0]
    row = [r for r in graph.device_span()[1] if graph.labels[r] == RELU]
    assert found.duration_us[row] == pytest.approx(100 * ratio)
    assert found.modelled_frac == pytest.approx(400 / 600)


def test_the_same_device_keeps_every_time() -> None:
    trace = _tiny().trace()
    graph = build_graph(trace)
    found = transfer_durations(trace, graph, graph.nodes_.duration_us, "v100-sxm2-16gb")
    rows = graph.device_span()[1]
    np.testing.assert_array_equal(found.duration_us[rows], graph.nodes_.duration_us[rows])


def test_what_a_source_does_badly_is_half_the_targets() -> None:
    """Four times as long on the source is twice as long on a board that is not like it."""

    def moved_us(kernel_us: float) -> float:
        tiny = Tiny()
        tiny.step(1, 0, 10_000)
        dims = {"Input Dims": [[2048, 1024], [1024, 1024]], "Input type": ["float"] * 2}
        tiny.op("aten::mm", 10, 40, **dims)
        tiny.launch(15, 20, kernel=(50, 50 + kernel_us))
        trace = tiny.trace()
        graph = build_graph(trace)
        found = transfer_durations(trace, graph, graph.nodes_.duration_us, "mi300x")
        return float(found.duration_us[graph.device_span()[1]][0])

    assert moved_us(4000) / moved_us(1000) == pytest.approx(2.0)
