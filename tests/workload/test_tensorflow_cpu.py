"""NVIDIA's TensorFlow 2 example on CPUs: one process, and what one thread does."""

from __future__ import annotations

import pytest

from perfmodel.errors import WorkloadError
from perfmodel.graph.ops import Op
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.parts.one_thread import CALL_US
from perfmodel.workload.parts.tensorflow_cpu import SEGMENT_SUM_NS, WHERE_NS

BATCH, FIELDS = 512, 27


def _workload() -> Workload:
    settings = {"implementation__precision": "fp32", "implementation__exchange_precision": "fp32"}
    return load_workload("nvidia-dlrm-extra-large").with_(**settings)


def _ops(batch: int, *, train: bool = True) -> tuple[Op, ...]:
    return op_graph(_workload(), batch, target="cpu", train=train).ops


def _on_one_thread(batch: int, *, train: bool = True) -> list[float]:
    found = [op for op in _ops(batch, train=train) if op.name == "tier::one_thread"]
    return [float(op.attributes["measured_us"]) for op in found]


def test_the_mask_and_its_gradient_are_serial() -> None:
    where_us = BATCH * FIELDS**2 * WHERE_NS * 1e-3
    sum_us = BATCH * FIELDS * (FIELDS - 1) / 2 * SEGMENT_SUM_NS * 1e-3
    assert _on_one_thread(BATCH) == pytest.approx([CALL_US, where_us, sum_us])
    assert _on_one_thread(BATCH, train=False) == pytest.approx([CALL_US, where_us])


def test_serial_work_grows_with_the_batch() -> None:
    once, twice = _on_one_thread(BATCH)[1:], _on_one_thread(2 * BATCH)[1:]
    assert twice == pytest.approx([2 * taken for taken in once])


def test_gradients_of_rows_are_copied_for_both_joins_negated_scaled_and_added() -> None:
    names = [op.name.removeprefix("hugectr::") for op in _ops(BATCH)]
    passes = [name for name in names if name in ("slice", "negate", "scale", "scatter_add")]
    assert passes == ["slice", "slice", "negate", "scale", "scatter_add"]


def test_several_processes_are_refused() -> None:
    with pytest.raises(WorkloadError, match="in one process"):
        op_graph(_workload(), BATCH, ranks=2, target="cpu")


def test_bias_and_relu_ride_along_forwards_only() -> None:
    names = [op.name.removeprefix("hugectr::") for op in _ops(BATCH)]
    assert not {"relu", "bias", "aten::relu"} & set(names)
    assert names.count("relu_backward") == names.count("bias_backward") == 8
