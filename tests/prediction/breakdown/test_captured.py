"""Kernels of graphs laid back onto operators: by a second, eager trace, or by the capture."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny, trace_of

from perfmodel import breakdown, read
from perfmodel.prediction.breakdown.job import Breakdown

KERNELS = tuple(f"kernel_{n % 7}_of_{n % 5}" for n in range(20))
GRAPH = Path(__file__).parents[3] / "traces/h100/dlrm"


def eager(*, names: tuple[str, ...] = KERNELS, modules: bool = False) -> Tiny:
    """A step of an operator per kernel: `aten::mm` within `aten::linear`, and `aten::add`."""
    t = Tiny(where="eager.json")
    t.step(1, 0, 1000)
    if modules:
        t.event("python_function", "nn.Module: Tower_0", (5, 800), 1)
    for number, name in enumerate(names):
        at = 10 + 30 * number
        if number % 2:
            t.op("aten::add", at, at + 20)
        else:
            t.op("aten::linear", at, at + 20)
            t.op("aten::mm", at + 1, at + 19)
        t.launch(at + 5, at + 10, kernel=(at + 12, at + 22), name=name)
    return t


def graph(names: tuple[str, ...] = KERNELS, launches: int = 2) -> Tiny:
    """Steps that launch a graph of these kernels of 10 us each."""
    t = Tiny()
    for step in range(launches):
        begin = 500 * step
        t.step(step, begin, begin + 500)
        correlation = t.call("cudaGraphLaunch", begin + 10, begin + 20)
        for number, name in enumerate(names):
            at = begin + 25 + 12 * number
            t.kernel(at, at + 10, name, correlation=correlation)
    return t


def operators(found: Breakdown) -> dict[str, tuple[float, float, float]]:
    """By name: count, own and total device time per step."""
    return {
        row["name"]: (row["count"], row["device_us"], row["device_total_us"])
        for row in found.rows("top_operators")
    }


def test_a_graph_repeats_the_operators_of_the_eager_trace() -> None:
    found = breakdown(graph().trace(), capture=eager().trace())
    assert operators(found) == {"aten::mm": (10, 100, 100), "aten::add": (10, 100, 100)}
    (line,) = [gap.what for gap in found.gaps if "graph launches" in gap.what]
    assert "100 % of that is laid back onto operators of tiny" in line


def test_operators_that_call_have_it_in_their_totals() -> None:
    sums = breakdown(graph().trace(), capture=eager().trace()).sums("top_operators")
    at = sums.names.index("aten::linear")
    assert (sums.columns["device_us"][at], sums.columns["device_total_us"][at]) == (0, 200)


def test_modules_of_the_eager_trace_have_the_time_too() -> None:
    found = breakdown(graph().trace(), capture=eager(modules=True).trace())
    (row,) = found.rows("annotations")
    assert (row["name"], row["device_us"]) == ("nn.Module: Tower", 200)


def test_kernels_that_the_eager_trace_lacks_stay_without_an_operator() -> None:
    others = tuple(name if number % 4 else f"other_{number}" for number, name in enumerate(KERNELS))
    found = breakdown(graph(others).trace(), capture=eager().trace())
    assert sum(own for _, own, _ in operators(found).values()) == 150
    assert any("75 % of that is laid back" in gap.what for gap in found.gaps)


@pytest.mark.parametrize(
    ("names", "capture"),
    [
        (tuple(f"other_{n}" for n in range(20)), eager()),
        (KERNELS[:4], eager()),
        (KERNELS, eager(names=KERNELS[:8])),
        (KERNELS, None),
    ],
    ids=["other kernels", "too few to tell", "too few are shared", "nothing eager"],
)
def test_what_is_not_the_same_program_is_not_laid_back(
    names: tuple[str, ...], capture: Tiny | None
) -> None:
    found = breakdown(graph(names).trace(), capture=capture and capture.trace())
    assert operators(found) == {}
    assert any("no operator can be blamed" in gap.what for gap in found.gaps)


def test_an_eager_step_of_the_same_file_is_taken() -> None:
    both, later = eager(), graph(launches=1)
    for event in later.events:
        event["ts"] += 1000
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 1000
        if event["name"].startswith("ProfilerStep"):
            event["name"] = "ProfilerStep#2"
    both.events += later.events
    found = breakdown(both.trace())
    assert operators(found)["aten::mm"][1] == 100
    assert any("onto operators that ran without one" in gap.what for gap in found.gaps)


def test_the_calls_that_were_captured_tell_whatever_the_names_are() -> None:
    """Between begin and end of a capture, calls run nothing; the graph has a kernel for each."""
    t = Tiny()
    t.step(0, 0, 300)
    t.call("cudaStreamBeginCapture", 1, 2)
    for number, op in enumerate(("aten::mm", "aten::add", "aten::mm")):
        t.op(op, 10 + 20 * number, 25 + 20 * number)
        t.call("cudaLaunchKernel", 12 + 20 * number, 14 + 20 * number)
    t.call("cudaStreamEndCapture", 100, 101)
    correlation = t.call("cudaGraphLaunch", 110, 120)
    for number in range(3):
        t.kernel(130 + 20 * number, 140 + 20 * number, f"k{number}", correlation=correlation)
    own = {name: us for name, (_, us, _) in operators(breakdown(t.trace())).items()}
    assert own == {"aten::mm": 20, "aten::add": 10}


def test_an_operator_around_the_launch_keeps_it_in_its_total_alone() -> None:
    t = graph(launches=1)
    t.op("CompiledFunction", 5, 25)
    found = breakdown(t.trace(), capture=eager().trace())
    sums = found.sums("top_operators")
    at = sums.names.index("CompiledFunction")
    assert (sums.columns["device_us"][at], sums.columns["device_total_us"][at]) == (0, 200)
    assert operators(found)["aten::mm"][1] == 100


def test_ranks_are_laid_back_on_the_like_rank() -> None:
    found = breakdown(trace_of(graph(), graph()), capture=trace_of(eager(), eager()))
    assert operators(found)["aten::add"] == (10, 100, 100)


@pytest.mark.parametrize(("name", "least"), [("default", 0.8), ("ddp", 0.85)])
def test_a_real_graph_is_laid_back_on_a_real_eager_trace(name: str, least: float) -> None:
    """A DLRM on an H100 whose tables are updated in place, on one whose batch is another."""
    path = GRAPH / f"dlrm_{name}_inplace_graph_kineto.json.gz"
    found = breakdown(read(path), capture=GRAPH / f"dlrm_{name}_b2048_kineto.json.gz")
    laid = found.ranks[0].laid_back
    assert laid is not None
    assert laid.frac > least
    names = [row["name"] for row in found.rows("top_operators", 8)]
    assert {"aten::mm", "aten::addmm", "aten::_embedding_bag"} <= {*names}
    device_us = sum(row["device_us"] for row in found.rows("top_operators"))
    assert device_us <= found.ranks[0].hot.device_us.sum() / found.ranks[0].summary.steps
