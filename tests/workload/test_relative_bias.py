"""The bias of scores by distance in places and time, and heads of several tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.rates import issued_per_us, special_per_us
from perfmodel.errors import WorkloadError
from perfmodel.hardware import device
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.implementations.hstu import TIME_BUCKETS

C = coefficients("gpu.attention")
H100 = device("h100-sxm")
LENGTH, SAMPLES, HEADS = 2048.0, 256.0, 4.0
DIMS = {
    "tokens": SAMPLES * LENGTH, "pairs": SAMPLES * LENGTH * LENGTH / 2, "heads": HEADS,
    "head_dim": 128.0, "value_dim": 128.0,
}  # fmt: skip
SCORES = (SAMPLES * LENGTH * (LENGTH + C.table("tile_rows")["triton"]) / 2) * HEADS


@pytest.fixture(scope="module")
def small() -> Workload:
    """One layer over equal histories."""
    return load_workload("dlrm-v4-hstu").with_(sequence__length_std=0.0, sequence__layers=1)


def time_us(direction: str, buckets: float) -> float:
    dims = {name: np.array([value]) for name, value in DIMS.items()}
    dims["bias_buckets"] = np.array([buckets])
    rows = Rows(("jagged_attention",), ("bf16",), (direction,), (KERNEL,), dims)
    return float(durations_of(rows, H100).duration_us[0])


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_bias_is_looked_up_for_each_score_of_each_head(direction: str) -> None:
    more = time_us(direction, 2048.0) - time_us(direction, 0.0)
    each = C.bias_instructions / issued_per_us(H100) + C.bias_specials / special_per_us(H100)
    assert more == pytest.approx(SCORES * each / C.serial_frac, rel=1e-6)


def test_additions_queue_for_the_lines_of_few_buckets() -> None:
    """Of 2,048 buckets 64 lines, of 32 one: all warps of pairs behind one another."""
    line_us = coefficients("gpu.streaming").table("atomic_line_us")["cuda"]
    queued = DIMS["pairs"] / 32 * line_us
    fewer = time_us("bwd_bias", 32.0) - time_us("bwd_bias", 2048.0)
    assert fewer == pytest.approx(queued * (1 - 1 / 64), rel=1e-6)


def test_its_gradient_takes_two_products_of_each_head() -> None:
    spec, ones = OPS["jagged_attention"], {name: np.array([v]) for name, v in DIMS.items()}
    products = 2.0 * DIMS["pairs"] * HEADS * (128 + 128)
    assert spec.of("bwd_bias").flop(ones)[0] == products
    assert spec.of("bwd_bias").written_bytes(ones, np.array([2.0]))[0] == 0.0


def test_a_fused_step_has_one_kernel_more_and_two_parameters_more(small: Workload) -> None:
    plain, biased = (
        op_graph(each, 8) for each in (small, small.with_(sequence__relative_bias=True))
    )
    names = [op.name for op in biased.ops]
    assert names.count("hstu::attention_bias_backward") == 1
    assert "hstu::attention_bias_backward" not in {op.name for op in plain.ops}
    (gradient,) = (op for op in biased.ops if op.name == "hstu::attention_bias_backward")
    assert gradient.attributes["bias_buckets"] == "2048.0"
    assert {x.shape for x in gradient.outputs[0]} == {(2 * 4096 - 1,), (TIME_BUCKETS,)}


def test_cutlass_has_no_such_bias(small: Workload) -> None:
    with pytest.raises(WorkloadError, match='relative_bias: kernels "cutlass" take a bias as a'):
        small.with_(sequence__kernels="cutlass", sequence__relative_bias=True)


def test_a_head_has_a_column_and_a_loss_per_task(small: Workload) -> None:
    graph = op_graph(replace(small, model=replace(small.model, top_mlp=(512, 3))), 8)
    (loss,) = (op for op in graph.ops if op.name == "aten::binary_cross_entropy_with_logits")
    assert [x.shape for x in loss.tensors[:2]] == [(8, 3), (8, 3)]
