"""Device time from shapes alone, beside what was measured."""

from __future__ import annotations

import pytest
from tiny import Tiny, float_inputs

from perfmodel.trace import Trace
from perfmodel.validate.evaluate.jobs import TOTAL, shape_pairs, shape_times
from perfmodel.validate.evaluate.results import rows_of

GEMM, ADD = "volta_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4, X>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _trace() -> Trace:
    """A product of 400 us, an addition of 100 us, a collective, and a kernel without an op."""
    tiny = Tiny(device="Tesla V100-SXM2-16GB")
    tiny.step(1, 0, 1000)
    tiny.op("aten::mm", 10, 30, **float_inputs([2048, 1024], [1024, 1024]))
    tiny.launch(15, 20, kernel=(40, 440), name=GEMM)
    tiny.op("aten::add", 35, 45, **float_inputs([4096, 1024], [4096, 1024]))
    tiny.launch(38, 42, kernel=(440, 540), name=ADD)
    tiny.op("c10d::allreduce_", 50, 60, **float_inputs([1024]))
    tiny.launch(52, 55, kernel=(540, 640), name=NCCL)
    tiny.launch(70, 75, kernel=(640, 700), name=ADD)
    return tiny.trace()


def test_every_op_that_launched_is_beside_its_prediction() -> None:
    found = shape_times(_trace())
    assert found["family"].tolist() == ["matmul", "elementwise"]
    assert found["op"].tolist() == ["aten::mm", "aten::add"]
    assert found["measured_us"].tolist() == [400, 100]
    assert (found["predicted_us"] > 0).all()


def test_rows_are_errors_of_sums() -> None:
    found = shape_times(_trace())
    rows = {row["name"]: row for row in rows_of("t", *shape_pairs(_trace()))}
    assert set(rows) == {"matmul", "elementwise", TOTAL}
    expected = 100 * (found["predicted_us"].sum() / 500 - 1)
    assert rows[TOTAL]["bias_pct"] == pytest.approx(expected, abs=1e-3)


def test_a_trace_without_shapes_has_none() -> None:
    tiny = Tiny()
    tiny.step(1, 0, 100)
    tiny.op("aten::mm", 10, 30)
    tiny.launch(15, 20, kernel=(40, 80))
    assert shape_pairs(tiny.trace()) == []
