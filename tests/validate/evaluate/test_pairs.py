"""One program on two machines: each trace moved to the other's device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny import Tiny
from validate.evaluate.handmade import save

from benchmarks.published.pairs import evaluate_pairs
from perfmodel.errors import UsageError
from perfmodel.prediction import predict
from perfmodel.trace import read

V100, A100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"
MEMORY_BYTES = {V100: 16_945_512_448, A100: 85_175_894_016}
GEMM, ADD = "volta_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4, add"


def _trace(path: Path, gpu: str, gemm_us: float, add_us: float) -> Path:
    """Two kernels, one after the other, and a host that waits for them."""
    t = Tiny(device=gpu)
    t.head["deviceProperties"][0]["totalGlobalMem"] = MEMORY_BYTES[gpu]
    t.op("aten::mm", 1, 9)
    t.launch(2, 4, kernel=(5, 5 + gemm_us), name=GEMM)
    t.launch(5, 7, kernel=(5 + gemm_us, 5 + gemm_us + add_us), name=ADD)
    end = 6 + gemm_us + add_us
    t.call("cudaDeviceSynchronize", 10, end)
    t.step(1, 0, end)
    return save(path, t)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    return [
        _trace(tmp_path / "v100.json", V100, 600, 300),
        _trace(tmp_path / "a100.json", A100, 400, 200),
    ]


def test_each_is_moved_to_the_others_device(pair: list[Path]) -> None:
    there, back = evaluate_pairs(pair)["directions"]
    assert (there["source"], there["target"]) == ("v100-sxm2-16gb", "a100-sxm-80gb")
    assert (back["source"], back["target"]) == (there["target"], there["source"])
    moved = predict(read(pair[0]), hardware="a100-sxm-80gb").results[0]
    step, active = there["times"][0], there["times"][1]
    assert step["predicted_us"] == moved.rank.step_us
    assert (step["source_us"], step["measured_us"]) == (906, 606)
    assert (active["source_us"], active["measured_us"]) == (900, 600)
    assert step["same_error_pct"] == pytest.approx(100 * (906 / 606 - 1))
    assert (there["low_us"], there["high_us"]) == (moved.low_us, moved.high_us)


def test_families_are_beside_what_was_measured(pair: list[Path]) -> None:
    there, _ = evaluate_pairs(pair)["directions"]
    gemm, add = there["families"]
    assert (gemm["name"], gemm["source_us"], gemm["measured_us"]) == ("matmul", 600, 400)
    assert (add["name"], add["source_us"], add["measured_us"]) == ("elementwise", 300, 200)


def test_the_summary_is_of_absolute_errors(pair: list[Path]) -> None:
    summary = evaluate_pairs(pair)["summary"]
    assert summary["n"] == 2
    assert summary["step_same_pct"] == pytest.approx(50 * (906 / 606 - 606 / 906))


def test_what_is_no_pair(pair: list[Path]) -> None:
    with pytest.raises(UsageError, match="1 traces: expected pairs"):
        evaluate_pairs(pair[:1])
    with pytest.raises(UsageError, match=re.escape("both ran on v100-sxm2-16gb")):
        evaluate_pairs([pair[0], pair[0]])


@pytest.mark.slow
def test_between_vendors_device_time_is_nearer_than_that_of_the_source(reference: Path) -> None:
    """Three models on H100 and MI300X, both ways."""
    old, new = reference / "traces" / "inference", reference / "traces_2" / "inference"
    most_pct = {"timesformer": 11.0, "qwen1.5-0.5b": 7.0, "bert-small": 5.0}
    names = (
        (old, "h100_timesformer", new, "mi300x_timesformer"),
        (old, "h100_qwen1.5-0.5b", old, "mi300x_qwen1.5-0.5b"),
        (new, "h100_bert-small", new, "mi300x_bert-small"),
    )
    paths = [
        path for a, one, b, two in names for path in (a / f"{one}.json.gz", b / f"{two}.json.gz")
    ]
    found = evaluate_pairs(paths)
    models = [name for name in most_pct for _ in range(2)]
    for model, each in zip(models, found["directions"], strict=True):
        active = each["times"][1]
        ours, same = active["error_pct"], active["same_error_pct"]
        assert ours is not None
        assert same is not None
        assert abs(ours) < most_pct[model]
        assert abs(ours) < abs(same)
    assert found["summary"]["gpu_active_pct"] < 8  # 21.0 as on the source
