"""What takes the time: hand-made steps whose sums can be read off, and what other tools say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import AUTOGRAD, COMMS, EVALUATE, MAIN, NCCL, WORKER, Tiny, trace_of

from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.prediction.breakdown.tables import (
    kernel_rows,
    operator_rows,
    range_rows,
    rate_rows,
    rate_sums,
)
from perfmodel.trace import read
from perfmodel.trace.window import Steps

GEMM = "volta_sgemm_128x64_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(X)"


def two_steps() -> Tiny:
    """Two steps of 100 us; a linear with a product in it, an addition, and a late all-reduce."""
    t = Tiny()
    for number in range(2):
        at = 100 * number
        t.step(number, at, at + 100)
        t.note("## forward ##", at + 5, at + 45)
        t.op("aten::linear", at + 10, at + 40)
        t.op("aten::addmm", at + 15, at + 35)
        t.launch(at + 20, at + 25, (at + 30, at + 60), name=GEMM)
        t.op("aten::add", at + 50, at + 60)
        t.launch(at + 52, at + 54, (at + 60, at + 65), name=ADD)
        t.op("c10d::allreduce_", at + 70, at + 80)
        t.launch(at + 72, at + 75, (at + 90, at + 120), name=NCCL, stream=COMMS)
    return t


def hot(t: Tiny, *steps: int) -> Hotspots:
    rank, links = t.linked()
    return Hotspots(rank, links, steps or tuple(range(len(links.steps))))


def test_kernels_are_counted_per_step_and_clipped_to_the_steps() -> None:
    rows = {row["short_name"]: row for row in kernel_rows(hot(two_steps()).kernels)}
    assert list(rows) == [GEMM, NCCL, "vectorized_elementwise_kernel[CUDAFunctor_add]"]
    gemm, nccl, add = rows.values()
    assert (gemm["count"], gemm["device_us"], gemm["mean_us"]) == (1, 30, 30)
    # The second all-reduce runs 20 us after the last step.
    assert (nccl["count"], nccl["device_us"]) == (1, pytest.approx(20))
    assert add["name"] == ADD
    assert (gemm["step_frac"], gemm["device_frac"]) == pytest.approx((0.3, 30 / 55))
    assert sum(row["device_frac"] for row in rows.values()) == pytest.approx(1)


def test_only_the_steps_that_count_are_summed() -> None:
    first = hot(two_steps(), 0)
    nccl = next(row for row in kernel_rows(first.kernels) if row["name"] == NCCL)
    assert (nccl["count"], nccl["device_us"]) == (1, 10)
    assert {row["count"] for row in operator_rows(first.operators)} == {1}


def test_operators_own_what_they_launch_and_total_what_they_call() -> None:
    rows = {row["name"]: row for row in operator_rows(hot(two_steps()).operators)}
    assert list(rows)[:2] == ["aten::addmm", "c10d::allreduce_"]
    linear, product = rows["aten::linear"], rows["aten::addmm"]
    assert (linear["device_us"], linear["device_total_us"]) == (0, 30)
    assert (linear["host_us"], linear["host_total_us"]) == (10, 30)
    assert (product["device_us"], product["host_us"], product["count"]) == (30, 20, 1)
    assert product["step_frac"] == pytest.approx(0.2)


def test_an_operator_within_one_of_its_name_adds_nothing_to_totals() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.op("aten::to", 0, 40)
    t.op("aten::to", 10, 30)
    t.launch(15, 20, (30, 50))
    (row,) = operator_rows(hot(t).operators)
    assert (row["count"], row["host_us"], row["host_total_us"]) == (2, 40, 40)
    assert (row["device_us"], row["device_total_us"]) == (20, 20)


def test_ranges_hold_what_autograd_launches_meanwhile() -> None:
    t = Tiny()
    t.step(0, 0, 200)
    t.note("## backward ##", 10, 100)
    t.note("## loss ##", 10, 20)
    t.op(EVALUATE + "MmBackward0", 40, 60, thread=AUTOGRAD)
    t.launch(45, 50, (55, 85), thread=AUTOGRAD)
    t.op("aten::add", 110, 120)
    t.launch(112, 114, (120, 130))
    rows = {row["name"]: row for row in range_rows(hot(t).ranges)}
    assert (rows["## backward ##"]["host_us"], rows["## backward ##"]["device_us"]) == (90, 30)
    assert rows["## loss ##"]["device_us"] == 0
    names = [row["short_name"] for row in operator_rows(hot(t).operators)]
    assert names == ["MmBackward0", "aten::add"]


def test_ranges_and_modules_of_one_trace_keep_their_own_times() -> None:
    t = Tiny()
    for number in range(2):
        at = 100 * number
        t.step(number, at, at + 100)
        t.note("exchange", at + 5, at + 35)
        t.event("python_function", "nn.Module: Linear_0", (at + 40, at + 60), MAIN)
        t.op("aten::mm", at + 42, at + 58)
        t.launch(at + 45, at + 50, (at + 50, at + 65))
    rows = {row["name"]: row for row in range_rows(hot(t).ranges)}
    assert (rows["exchange"]["count"], rows["exchange"]["host_us"]) == (1, 30)
    linear = rows["nn.Module: Linear"]
    assert (linear["count"], linear["host_us"], linear["device_us"]) == (1, 20, 15)
    assert linear["step_frac"] == pytest.approx(0.2)


def differentiated(t: Tiny, at: float, sequence: int, forward_thread: int, us: float) -> None:
    """A backward operator on the autograd thread, with a kernel of so many microseconds."""
    of = {"Sequence number": sequence, "Fwd thread id": forward_thread}
    t.op(EVALUATE + "MmBackward0", at, at + 8, thread=AUTOGRAD, **of)
    t.op("aten::mm", at + 1, at + 6, thread=AUTOGRAD)
    t.launch(at + 2, at + 3, (at + 4, at + 4 + us), thread=AUTOGRAD)


def test_backward_time_of_a_module_is_joined_by_sequence_number() -> None:
    t = Tiny()
    t.step(0, 0, 200)
    t.note("iteration", 0, 190)
    for number, (name, at) in enumerate((("Tower", 10), ("Head", 30))):
        t.event("python_function", f"nn.Module: {name}_0", (at, at + 15), MAIN)
        of = {"Sequence number": 41 + number, "Fwd thread id": 0}
        t.op("aten::t", at + 1, at + 2, **of)
        t.op("aten::mm", at + 3, at + 12, **of)
        t.launch(at + 5, at + 6, (at + 7, at + 17))
    differentiated(t, 100, 42, 1, 20)
    differentiated(t, 130, 41, 1, 30)
    differentiated(t, 170, 7, 1, 10)  # its forward operator was not recorded
    rows = {row["name"]: row for row in range_rows(hot(t).ranges)}
    found = {name: (row["device_us"], row["backward_device_us"]) for name, row in rows.items()}
    assert found == {
        "iteration": (80, 0),  # it holds the backward pass itself
        "nn.Module: Tower": (10, 30),
        "nn.Module: Head": (10, 20),
    }


def test_threads_that_count_the_same_numbers_are_told_apart() -> None:
    t = Tiny()
    t.step(0, 0, 200)
    for name, thread, at in (("left", MAIN, 10), ("right", WORKER, 20)):
        t.note(name, at, at + 15, thread=thread)
        t.op("aten::mm", at + 3, at + 12, thread, **{"Sequence number": 5, "Fwd thread id": 0})
    differentiated(t, 100, 5, 2, 20)
    differentiated(t, 130, 5, 1, 30)
    rows = {row["name"]: row["backward_device_us"] for row in range_rows(hot(t).ranges)}
    assert rows == {"left": 30, "right": 20}


def test_rows_that_tie_stand_by_name() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    for at, name in ((10, "delta"), (30, "alpha"), (50, "charlie")):
        t.op(f"my::{name}", at, at + 10)
        t.launch(at + 1, at + 2, (at + 5, at + 12), name=name)
    assert [row["name"] for row in kernel_rows(hot(t).kernels)] == ["alpha", "charlie", "delta"]
    operators = operator_rows(hot(t).operators)
    assert [row["name"] for row in operators] == ["my::alpha", "my::charlie", "my::delta"]


def test_modules_count_by_class_and_a_module_within_its_class_once() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    for name, start, end in (
        ("Sequential_0", 0, 60),
        ("Sequential_1", 5, 50),
        ("Linear_0", 10, 40),
    ):
        t.event("python_function", f"nn.Module: {name}", (start, end), MAIN)
    t.event("python_function", "nn/modules/module.py(1): forward", (0, 60), MAIN)
    t.op("aten::addmm", 15, 35)
    t.launch(20, 25, (30, 50))
    rows = {row["name"]: row for row in range_rows(hot(t).ranges)}
    assert set(rows) == {"nn.Module: Sequential", "nn.Module: Linear"}
    sequential = rows["nn.Module: Sequential"]
    assert (sequential["count"], sequential["host_us"], sequential["device_us"]) == (2, 60, 20)
    assert (rows["nn.Module: Linear"]["kind"], rows["nn.Module: Linear"]["device_us"]) == (
        "module",
        20,
    )


def test_of_several_ranks_the_mean_and_the_slowest() -> None:
    short, long = Tiny(0, 2), Tiny(1, 2)
    for t, end in ((short, 30), (long, 50)):
        t.step(0, 0, 100 + end)
        t.op("aten::mm", 0, 10)
        t.launch(2, 4, (10, end))
    found = breakdown(trace_of(short, long))
    (row,) = found.rows("top_kernels")
    assert (row["count"], row["device_us"]) == (1, 30)
    assert found.slowest.rank == 1
    assert [rank.summary.gpu_active_us for rank in found.ranks] == [20, 40]
    document = found.to_dict()
    assert [each["rank"] for each in document["summary"]] == [0, 1]
    assert document["slowest_rank"] == 1


def test_tables_as_frames() -> None:
    found = breakdown(two_steps().trace())
    assert found.table("top_kernels")["name"].tolist()[0] == GEMM
    assert found.table("memory").empty
    with pytest.raises(UsageError, match="no table 'kernels'"):
        found.table("kernels")


def test_a_choice_of_steps_is_what_the_tables_are_of() -> None:
    (rank,) = breakdown(two_steps().trace()).ranks
    last = rank.of_steps(slice(1, 2))
    assert last.summary.steps == 1
    nccl = next(row for row in last.rows("top_kernels") if row["name"] == NCCL)
    # What is left of the first step's, and half of its own.
    assert nccl["device_us"] == 30
    assert last.summary.comm_us == 30
    assert last.summary.hidden_comm_frac == pytest.approx(0)


@pytest.mark.parametrize("name", ["h100_qwen1.5-0.5b", "mi300x_qwen1.5-0.5b"])
def test_operators_and_rates_agree_with_tracelens(reference: Path, name: str) -> None:
    """Time per operator of the whole trace, and rates of matrix products by shape."""
    path = reference / "traces" / "inference" / f"{name}.json.gz"
    golden = reference / "golden" / "tl" / f"inference__{name}.json"
    if not path.exists() or not golden.exists():
        pytest.skip(f"reference data not found (PERFMODEL_REFERENCE): {name}")
    theirs = json.loads(golden.read_text())
    trace = read(path)
    (rank,), (links,) = trace.ranks, trace.links
    window = Steps(("all",), np.zeros(1), np.array([float(rank.end_us.max())]), is_window=True)
    whole = Hotspots(rank, replace(links, steps=window), (0,))
    ours = {row["name"]: row for row in operator_rows(whole.operators)}
    for row in theirs["ops_summary_top15"]:
        mine = ours[row["name"]]
        assert mine["count"] >= row["Count"]
        assert mine["device_us"] == pytest.approx(row["total_direct_kernel_time_sum"], rel=1e-3)
    reached = {(row["operator"], row["shapes"]): row for row in rate_rows(rate_sums(whole))}
    products = [r for r in theirs["unified_perf_top15"] if r["name"] in ("aten::mm", "aten::addmm")]
    assert products
    for row in products:
        shapes = " ".join("x".join(map(str, dims)) for dims in row["Input Dims"] if dims)
        mine_rate = reached[row["name"], shapes]
        assert mine_rate["count"] == row["operation_count"]
        assert mine_rate["tflop_per_s"] == pytest.approx(row["TFLOPS/s_mean"], rel=0.02)
        assert mine_rate["gb_per_s"] == pytest.approx(1000 * row["TB/s_mean"], rel=0.02)


@pytest.mark.parametrize("rank", range(4))
def test_overlap_agrees_with_tracelens(reference: Path, rank: int) -> None:
    """Where it can link every kernel, so that it counts them all."""
    path = reference / "traces" / "dlrm_v100x8" / f"kineto_rank{rank}.json.gz"
    golden = reference / "golden" / "tl" / f"dlrm_v100x8__kineto_rank{rank}.json"
    if not path.exists() or not golden.exists():
        pytest.skip(f"reference data not found (PERFMODEL_REFERENCE): {path.name}")
    theirs = {row["type"]: row["time ms"] for row in json.loads(golden.read_text())["gpu_timeline"]}
    summary = breakdown(read(path)).ranks[0].summary
    assert summary.comm_us == pytest.approx(1000 * theirs["total_comm_time"], rel=1e-3)
    hidden = 1 - theirs["exposed_comm_time"] / theirs["total_comm_time"]
    assert summary.hidden_comm_frac == pytest.approx(hidden, abs=1e-3)
