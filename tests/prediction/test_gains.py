"""What would help most: by hand, in order, and the same by the command that each line names."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slow import slow_but
from tiny import GEMM, Tiny, made_graph, trace_of

import perfmodel.prediction.gains as module
from perfmodel.prediction import predict
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.prediction.gains import MIN_FRAC, MOST, Gain, gains
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.graph.kinds import Cause
from perfmodel.trace import Trace, read

WORDS = ("perfmodel", "predict", "my traces/a.json")
SOFTMAX = "void at::native::softmax_warp_forward"


def of(trace: Trace) -> list[Gain]:
    found = breakdown(trace)
    graph = found.timeline.graph
    straggler = None if found.waiting is None else found.waiting.to_dict()
    return gains(graph, graph.nodes_.duration_us, WORDS, straggler=straggler)


def by_option(found: list[Gain]) -> dict[str, float]:
    return {" ".join(shlex.split(gain.command)[3:]): gain.gain_us for gain in found}


def loading(rank: int | None = None, loading_us: float = 400.0) -> Tiny:
    """Three steps: data loading, 100 us of an operator, then a kernel of 300 us that the host
    waits for from 50 us after its launch on, and 10 us more."""
    t = Tiny(rank, 2)
    at = 0.0
    for number in range(3):
        t.note("enumerate(DataLoader)#_Next.__next__", at, at + loading_us)
        t.op("aten::stack", at, at + loading_us)
        begun = at + loading_us
        t.op("aten::index", begun, begun + 100)
        t.op("aten::mm", begun + 100, begun + 150)
        t.launch(begun + 120, begun + 125, kernel=(begun + 130, begun + 330), name=GEMM)
        t.launch(begun + 130, begun + 135, kernel=(begun + 330, begun + 430), name=SOFTMAX)
        t.call("cudaDeviceSynchronize", begun + 150, begun + 430)
        over = begun + 440
        t.step(number, at, over)
        at = over
    return t


def test_by_hand() -> None:
    found = of(loading().trace())
    base_us = 840.0
    assert by_option(found) == {
        "--remove data_loading": pytest.approx(400),
        "--scale matmul=0.5": pytest.approx(100),
        "--scale operators/main=0.5": pytest.approx((100 + 20 + 5 + 5) / 2, abs=5),
        "--scale host_op_without_launch: aten::index( in |$)=0.5": pytest.approx(50),
        "--scale softmax=0.5": pytest.approx(50),
    }
    assert found[0].name == "no data loading"
    assert found[0].advice == "more workers, or prefetch"
    for gain in found:
        assert gain.gain_frac == pytest.approx(gain.gain_us / base_us)
    assert [gain.gain_us for gain in found] == sorted((g.gain_us for g in found), reverse=True)


def test_waiting_for_requests_can_be_gone() -> None:
    t = Tiny()
    t.op("aten::a", 0, 20)
    t.event("python_function", "queue.py(154): get", (100, 900), 1)
    t.op("aten::b", 900, 1000)
    assert by_option(of(t.trace()))["--remove input"] == pytest.approx(800)


def test_a_thread_without_operators_gets_no_advice() -> None:
    """The main thread has a mark and an annotation; the autograd thread works for 10 us."""
    t = Tiny()
    t.step(1, 0, 1000)
    t.note("## backward ##", 100, 900)
    t.op("autograd::engine::evaluate_function: MmBackward0", 400, 410, thread=2)
    t.launch(402, 405, kernel=(500, 550), thread=2)
    assert not [gain.name for gain in of(t.trace()) if "main" in gain.name]


@pytest.mark.parametrize("around", ["", "autograd::engine::evaluate_function: "])
def test_an_operator_has_all_of_its_name_but_that_of_the_backward_pass(around: str) -> None:
    t = Tiny()
    t.op(f"{around}Torch-Compiled Region: 0/0", 0, 900)
    t.op("aten::index", 900, 1000)
    names = [gain.name for gain in of(t.trace())]
    assert "Torch-Compiled Region: 0/0 2x faster (CPU)" in names


def launches_without_kernels() -> Tiny:
    t = Tiny()
    t.op("aten::mm", 0, 100)
    t.call("cudaLaunchKernel", 10, 20)
    return t


def calls_alone() -> Tiny:
    t = Tiny()
    t.call("cudaGetDeviceCount", 0, 100)
    t.call("cudaDeviceSynchronize", 300, 900)
    return t


def python_alone() -> Tiny:
    t = Tiny()
    t.event("python_function", "train.py(1): main", (0, 1000), 1)
    return t


@pytest.mark.parametrize("made", [launches_without_kernels, calls_alone, python_alone])
def test_where_the_work_was_not_recorded_nothing_is_advised(made: Callable[[], Tiny]) -> None:
    assert of(made().trace()) == []


def test_a_gain_is_of_the_schedule_not_of_the_sum() -> None:
    """Two streams side by side: halving the longer kernel gains up to where the other ends."""
    t = Tiny()
    t.step(1, 0, 320)
    t.op("aten::mm", 0, 20)
    t.launch(2, 4, kernel=(10, 310), name=GEMM)
    t.launch(6, 8, kernel=(10, 260), name=SOFTMAX, stream=8)
    t.call("cudaDeviceSynchronize", 20, 310)
    graph = build_graph(t.trace())
    found = by_option(gains(graph, graph.nodes_.duration_us, WORDS))
    assert found["--scale matmul=0.5"] == pytest.approx(50, abs=5)  # not 150
    assert "--scale softmax=0.5" not in found


def test_no_more_than_a_few_and_none_below_a_hundredth() -> None:
    found = of(loading().trace())
    assert 0 < len(found) <= MOST
    assert min(gain.gain_frac for gain in found) >= MIN_FRAC


def test_what_no_what_if_scales_gains_nothing() -> None:
    graph = made_graph(
        {
            "start": ("0/main", 0.0, 0.0),
            "wait": ("0/main", 0.0, 50.0),
            "end": ("0/main", 50.0, 0.0),
        },
        [("start", "wait"), ("wait", "end")],
        causes=np.full(3, Cause.UNEXPLAINED),
    )
    assert gains(graph, graph.nodes_.duration_us, WORDS) == []


def test_a_straggler_with_no_more_than_the_others() -> None:
    """Rank 1 loads 400 us longer; the ranks meet at a collective, so that both take its time."""

    def rank(number: int, loading_us: float) -> Tiny:
        t = Tiny(number, 2)
        for step, at in enumerate((0.0, 1000.0, 2000.0)):
            t.note("enumerate(DataLoader)#_Next.__next__", at, at + loading_us)
            t.op("aten::stack", at, at + loading_us)
            t.op("c10d::allreduce_", at + loading_us, at + loading_us + 20)
            begun = at + loading_us + 10
            t.launch(
                *(at + loading_us + 2, at + loading_us + 6),
                kernel=(begun, at + 900),
                name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            )
            t.call("cudaDeviceSynchronize", at + loading_us + 20, at + 900)
            t.step(step, at, at + 1000)
        return t

    found = of(trace_of(rank(0, 200), rank(1, 600)))
    named = {gain.name: gain for gain in found}
    level = named["rank 1 with no more data loading than the others"]
    assert shlex.split(level.command)[3:] == ["--scale", "data_loading@1=0.333"]
    assert level.gain_us == pytest.approx(400, abs=1)
    assert level.advice == "more workers, or prefetch"


def test_commands_are_quoted_for_a_shell() -> None:
    found = of(loading().trace())
    assert all(gain.command.startswith("perfmodel predict 'my traces/a.json' --") for gain in found)
    assert all(shlex.split(gain.command)[:3] == list(WORDS) for gain in found)


def reproduced(trace: Trace, gain: Gain) -> float:
    option, text = shlex.split(gain.command)[-2:]
    what_if = {"scale": [text]} if option == "--scale" else {"remove": [text]}
    change = predict(trace, **what_if, keep_contention=True).results[0].gain
    assert change is not None
    return change["gain_us"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_command_says_the_same(ranks: int) -> None:
    trace = trace_of(*(loading(rank, 400 + 50 * rank) for rank in range(ranks)))
    found = of(trace)
    assert found
    for gain in found:
        assert reproduced(trace, gain) == pytest.approx(gain.gain_us, abs=1e-6)


REAL = (
    "traces/dlrm_v100x8/kineto_rank0.json.gz",
    "traces_2/graphs/vllm_decode_full_graph.json.gz",
    "traces_2/inference/mi300x_timesformer.json.gz",
    "traces/train/v100_resnet50_workers0_a.json.gz",
    "traces/torchrec_v100x4/sst_long_a2a_optimizer_3_29220",
)


@pytest.mark.parametrize("name", slow_but(3, REAL))
def test_each_command_says_the_same_on_real_traces(reference: Path, name: str) -> None:
    trace = read(reference / name)
    found = of(trace)
    assert found
    for gain in found:
        assert reproduced(trace, gain) == pytest.approx(gain.gain_us, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("name", slow_but(1, REAL))
def test_nothing_gains_more_than_it_is_bounded_by(
    reference: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no bounds, every what-if is scheduled: the list is the same."""
    trace = read(reference / name)
    found = of(trace)

    def unbounded(*about: Any) -> list[Any]:
        return [(np.inf, *candidate) for _, *candidate in bounded(*about)]

    bounded = module._bounded
    monkeypatch.setattr(module, "_bounded", unbounded)
    assert of(trace) == found


@pytest.mark.slow
def test_what_is_not_listed_gains_less(reference: Path) -> None:
    """What the bound by the critical path leaves out gains less than what is listed."""
    trace = read(reference / "traces" / "train" / "v100_resnet50_workers0_a.json.gz")
    found = of(trace)
    assert "no data loading" in [gain.name for gain in found][:2]
    least_us = min(gain.gain_us for gain in found)
    listed = {shlex.split(gain.command)[-1] for gain in found}
    for family in ("convolution", "norm", "elementwise", "matmul", "reduction"):
        if f"{family}=0.5" not in listed:
            change = predict(trace, scale=[f"{family}=0.5"]).results[0].gain
            assert change is not None
            assert change["gain_us"] <= np.nextafter(least_us, np.inf)
