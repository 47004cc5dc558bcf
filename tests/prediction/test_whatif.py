"""What-ifs: parsing, what they match, and what they do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from timeline.graph.drawn import any_trace, quick
from tiny import AUTOGRAD, COMMS, COPIES, EVALUATE, GEMM, NCCL, Tiny, graph_of, nodes_named

from perfmodel.errors import UsageError
from perfmodel.prediction.what_if import Scale, node_texts, what_if
from perfmodel.timeline.graph.kinds import SCOPES, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule


@pytest.mark.parametrize(
    ("text", "scope", "pattern", "rank", "factor"),
    [
        ("gpu=0.5", "gpu", None, None, 0.5),
        ("host=0", "host", None, None, 0.0),
        ("comm=1e1", "comm", None, None, 10.0),
        ("compute:gemm|conv=.5", "compute", "gemm|conv", None, 0.5),
        ("compute:a=b=2", "compute", "a=b", None, 2.0),
        ("memcpy@3=2", "memcpy", None, 3, 2.0),
        ("allocator:cudaMalloc@12=2", "allocator", "cudaMalloc", 12, 2.0),
        ("host:a@b=2", "host", "a@b", None, 2.0),
        ("host:T1 .*::linear$=2", "host", "T1 .*::linear$", None, 2.0),
    ],
)
def test_scales(
    text: str, scope: str, pattern: str | None, rank: int | None, factor: float
) -> None:
    found = Scale.parse(text)
    assert (found.scope, found.rank, found.factor) == (scope, rank, factor)
    assert (found.pattern.pattern if found.pattern else None) == pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "expected SCOPE"),
        ("", "expected SCOPE"),
        ("gpu=", "expected SCOPE"),
        ("gpu=half", "expected SCOPE"),
        ("gpu=-1", "number >= 0"),
        ("gpu=nan", "number >= 0"),
        ("gpu=inf", "number >= 0"),
        ("tpu=0.5", "unknown scope 'tpu'; one of gpu, compute, comm, memcpy, host, allocator"),
        ("gemm=0.5", "unknown scope 'gemm'; one of gpu"),
        ("=0.5", "unknown scope ''"),
        ("GPU=0.5", "unknown scope 'GPU'"),
        ("gpu:(=0.5", "not a regular expression"),
        ("gpu@x=0.5", "unknown scope 'gpu@x'"),
        ("host/side=0.5", "unknown thread; expected SCOPE/THREAD, THREAD main, autograd, other"),
        ("blocking_call=0.5", "has no length to scale; take it out: remove blocking_call"),
        ("launch_queue_full=2", "take it out: remove launch_queue_full"),
    ],
)
def test_what_is_no_scale_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Scale.parse(text)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"scale {text!r}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "scope", "thread", "pattern"),
    [
        ("host_t4/autograd=0", "host_t4", "autograd", None),
        ("host/other:12=0", "host", "other:12", None),
        ("host/other:^T1=0", "host", "other", "^T1"),
        ("host/main:5=0", "host", "main", "5"),
        ("gpu/stream7:gemm@3=0", "gpu", "stream7", "gemm"),
        ("host:a/b=0", "host", "", "a/b"),
        ("data_loading=0", "data_loading", "", None),
    ],
)
def test_threads(text: str, scope: str, thread: str, pattern: str | None) -> None:
    found = Scale.parse(text)
    assert (found.scope, found.thread) == (scope, thread)
    assert (found.pattern.pattern if found.pattern else None) == pattern


def test_removals() -> None:
    found = Scale.parse_removal("host:x=y@2")
    assert (found.scope, found.rank, found.factor) == ("host", 2, 0)
    assert found.pattern is not None
    assert found.pattern.pattern == "x=y"
    with pytest.raises(UsageError, match="remove 'disk:x': unknown scope"):
        Scale.parse_removal("disk:x")


def tiny(rank: int | None = None) -> Tiny:
    t = Tiny(rank, 2)
    t.step(1, 0, 200)
    t.note("## forward ##", 6, 58)
    t.op("aten::linear", 10, 50)
    t.launch(20, 25, kernel=(30, 100))
    t.launch(30, 35, kernel=(40, 60), name=NCCL, stream=COMMS)
    t.copy(40, 45, copy=(50, 55), name="Memcpy HtoD", stream=COPIES)
    t.op("aten::empty", 70, 90)
    t.call("cudaMalloc", 72, 80)
    t.call("cudaDeviceSynchronize", 100, 110)
    return t


def matched(graph: ExecutionGraph, text: str) -> set[str]:
    return {graph.labels[node] for node in np.flatnonzero(Scale.parse(text).matches(graph))}


def test_what_a_scope_holds() -> None:
    graph = tiny().graph()
    assert matched(graph, "compute=1") == {GEMM}
    assert matched(graph, "comm=1") == {NCCL}
    assert matched(graph, "memcpy=1") == {"Memcpy HtoD"}
    assert matched(graph, "gpu=1") == {GEMM, NCCL, "Memcpy HtoD"}
    assert matched(graph, "allocator=1") == {"cudaMalloc"}
    host = matched(graph, "host=1")
    assert {"aten::linear", "cudaLaunchKernel", "cudaMemcpyAsync", "aten::empty"} <= host
    assert not host & {GEMM, NCCL, "cudaMalloc"}


def test_every_node_with_time_is_of_one_scope() -> None:
    graph = tiny().graph()
    of_scopes = [np.isin(graph.nodes_.scope, scopes) for scopes in SCOPES.values()]
    everything = set(np.flatnonzero(np.any(of_scopes, axis=0)))
    timed = set(np.flatnonzero(graph.nodes_.duration_us > 0))
    assert timed <= everything
    assert not (graph.nodes_.scope == Scope.NONE)[list(timed)].any()


def test_what_an_expression_is_searched_in() -> None:
    graph = tiny().graph()
    texts = [node_texts(graph, np.array([node]))[0] for node in nodes_named(graph, "aten::linear")]
    assert texts == [
        "T1 aten::linear in ProfilerStep#1",
        "T2 aten::linear in ## forward ##",
        *["T5 aten::linear in ## forward ##"] * 2,
        "T3 aten::linear in ## forward ##",
    ]
    (launch,) = nodes_named(graph, GEMM)
    assert node_texts(graph, np.array([launch]))[0] == GEMM
    (malloc,) = nodes_named(graph, "cudaMalloc")
    assert node_texts(graph, np.array([malloc]))[0] == "cudaMalloc"


def test_an_expression_chooses_by_overhead_operator_and_annotation() -> None:
    graph = tiny().graph()
    assert Scale.parse("host:^T5=1").matches(graph).sum() == 2
    assert Scale.parse("host:in ## forward ##=1").matches(graph).sum() == 7
    assert matched(graph, "compute:sgemm=1") == {GEMM}


@pytest.mark.parametrize("text", ["compute:conv=1", "gpu@1=1", "comm:Memcpy=1"])
def test_what_matches_nothing_is_an_error(text: str) -> None:
    graph = tiny().graph()
    with pytest.raises(UsageError, match="matches nothing in this trace"):
        what_if(graph, graph.nodes_.duration_us, [Scale.parse(text)])


def test_scales_apply_in_turn_and_change_nothing_else() -> None:
    graph = tiny().graph()
    scales = [Scale.parse("gpu=0.5"), Scale.parse("comm=3"), Scale.parse_removal("host:T1")]
    _, found = what_if(graph, graph.nodes_.duration_us, scales)
    assert found[nodes_named(graph, GEMM)] == 35
    assert found[nodes_named(graph, NCCL)] == 30
    t1 = np.array([node_texts(graph, np.array([n]))[0].startswith("T1") for n in range(len(graph))])
    t1 &= graph.nodes_.scope == Scope.HOST
    assert not found[t1].any()
    rest = ~t1 & ~np.isin(graph.nodes_.scope, SCOPES["gpu"])
    assert (found[rest] == graph.nodes_.duration_us[rest]).all()


def test_one_rank_only() -> None:
    graph = graph_of(tiny(0), tiny(1))
    found = Scale.parse("compute@1=1").matches(graph)
    assert graph.nodes_.rank[found].tolist() == [1]


def test_where_ranks_meet_waiting_is_not_scaled() -> None:
    graph = graph_of(tiny(0), tiny(1))
    chosen = np.flatnonzero(Scale.parse("comm=1").matches(graph))
    assert graph.nodes_.duration_us[chosen].tolist() == [20, 20]
    assert len(nodes_named(graph, NCCL)) == 5  # two arrivals and the meeting beside


@quick
@given(any_trace())
def test_a_factor_of_one_changes_nothing(t: Tiny) -> None:
    graph = t.graph()
    duration = graph.nodes_.duration_us
    for scope, scopes in SCOPES.items():
        if np.isin(graph.nodes_.scope, scopes).any():
            changed, found = what_if(graph, duration, [Scale.parse(f"{scope}=1")])
            assert changed is graph
            np.testing.assert_array_equal(found, duration)


def text_of(graph: ExecutionGraph, text: str) -> set[str]:
    chosen = np.flatnonzero(Scale.parse(text).matches(graph)).tolist()
    return {node_texts(graph, np.array([node]))[0] for node in chosen}


def threads() -> Tiny:
    """A loader, a forward pass on the main thread and a backward pass on autograd's."""
    t = Tiny()
    t.step(1, 0, 200)
    t.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20)
    t.op("aten::stack", 5, 15)
    t.op("aten::linear", 20, 50)
    t.launch(30, 35, kernel=(40, 60))
    t.op(EVALUATE + "AddmmBackward0", 60, 100, thread=AUTOGRAD)
    t.launch(70, 80, kernel=(85, 120), name="Memset (Device)", stream=8, thread=AUTOGRAD)
    return t


def test_parts_by_cause_thread_and_family() -> None:
    graph = threads().graph()
    inside = "in enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    loading = {f"DATA_LOADING aten::stack {inside}", f"DATA_LOADING aten::linear {inside}"}
    assert text_of(graph, "data_loading=1") == loading
    assert text_of(graph, "host_t4/autograd=1") == {"T4 cudaLaunchKernel"}
    assert text_of(graph, "host_t4/main=1") == {"T4 cudaLaunchKernel in ProfilerStep#1"}
    assert text_of(graph, "matmul=1") == {GEMM}
    assert text_of(graph, "gpu/stream8=1") == {"Memset (Device)"}
    backward = f"{EVALUATE}AddmmBackward0"
    expected = {f"T2 {backward}", "T4 cudaLaunchKernel", f"T3 {backward}"}
    assert text_of(graph, "operators/autograd=1") == expected
    for nothing in ("host/other=1", "host_t4/stream7=1", "convolution=1", "memcpy_device=1"):
        with pytest.raises(UsageError, match="matches nothing"):
            Scale.parse(nothing).matches(graph)


def one_step(t: Tiny, what: str) -> tuple[float, float]:
    """The step as it is replayed, and with a part of it gone."""
    graph = t.graph()
    changed, taken = what_if(graph, graph.nodes_.duration_us, [Scale.parse_removal(what)])
    before, after = schedule(graph).step_us, schedule(changed, taken).step_us
    return float(before[0]), float(after[0])


def blocking(kernel_end: float) -> Tiny:
    """The host waits from 20 us on for a kernel, then works for 30 us; the step ends 5 us later."""
    t = Tiny()
    t.step(1, 0, kernel_end + 35)
    t.op("aten::mm", 0, 20)
    t.launch(5, 10, kernel=(12, kernel_end))
    t.call("cudaDeviceSynchronize", 20, kernel_end)
    t.op("optimizer", kernel_end, kernel_end + 30)
    return t


def test_without_a_blocking_call_the_host_works_on() -> None:
    # The host is done at 20 + 30 + 5 us; the kernel, which the step's end waits for, at 60 or 40.
    assert one_step(blocking(60), "blocking_call") == (95, 60)
    assert one_step(blocking(40), "blocking_call") == (75, 55)
    assert one_step(blocking(60), "blocking_call:(?i)synchronize") == (95, 60)
    with pytest.raises(UsageError, match="matches nothing"):
        one_step(blocking(60), "blocking_call:(?i)memcpy")


def test_removing_a_host_call_alone_leaves_its_wait() -> None:
    # The call's time of 10 us is gone; what it waited for is not: 60 - 10, and 35 us behind it.
    assert one_step(blocking(60), "host:Synchronize") == (95, 85)


def test_without_the_allocator_nothing_waits_for_it() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 20)
    t.launch(5, 10, kernel=(12, 60))
    t.call("cudaFree", 30, 70)
    t.op("aten::add", 80, 100)
    # 10 us to the call, the kernel until 60, 10 us of the call, 30 us behind it; without it, the
    # host needs 20 + 10 + 10 + 20 us.
    assert one_step(t, "allocator") == (100, 60)


def test_launch_latency_is_a_lag() -> None:
    graph = blocking(60).graph()
    scales = [Scale.parse("launch_latency=0.5")]
    changed, taken = what_if(graph, graph.nodes_.duration_us, scales)
    assert taken is not graph.nodes_.duration_us
    assert (taken == graph.nodes_.duration_us).all()
    # The kernel begins 1 instead of 2 us after its launch call, and everything behind it follows.
    assert schedule(changed, taken).step_us == pytest.approx(94)


@quick
@given(any_trace())
def test_taking_waits_out_makes_no_cycle_and_no_work_later(t: Tiny) -> None:
    graph = t.graph()
    for part in ("blocking_call", "allocator"):
        try:
            changed, taken = what_if(graph, graph.nodes_.duration_us, [Scale.parse_removal(part)])
        except UsageError:
            continue
        assert len(changed.order) == len(graph)
        # Not of the steps' ends: they wait for what no call waits for any more.
        work = np.setdiff1d(np.arange(len(graph)), graph.marks.end)
        end, before = (found.end_us[work] for found in (schedule(changed, taken), schedule(graph)))
        early_us = -graph.edges_.lag_us.min(initial=0.0)  # a call may begin before its wait ends
        assert (end <= before + early_us + 1e-6).all()
