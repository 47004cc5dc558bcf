"""What-ifs: parsing, what they match, and what they do."""

from __future__ import annotations

import numpy as np
import pytest
from graph.drawn import any_trace, quick
from hypothesis import given
from tiny import COMMS, COPIES, GEMM, NCCL, Tiny, graph_of, nodes_named

from perfmodel.errors import UsageError
from perfmodel.graph.kinds import SCOPES, Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.whatif import Scale, node_text, what_if


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
        ("=0.5", "unknown scope ''"),
        ("GPU=0.5", "unknown scope 'GPU'"),
        ("gpu:(=0.5", "not a regular expression"),
        ("gpu@x=0.5", "unknown scope 'gpu@x'"),
    ],
)
def test_what_is_no_scale_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Scale.parse(text)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"--scale {text!r}: ")
    assert "\n" not in str(raised.value)


def test_removals() -> None:
    found = Scale.parse_removal("host:x=y@2")
    assert (found.scope, found.rank, found.factor) == ("host", 2, 0)
    assert found.pattern is not None
    assert found.pattern.pattern == "x=y"
    with pytest.raises(UsageError, match="--remove 'disk:x': unknown scope"):
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
    scopes = [set(np.flatnonzero(Scale.parse(f"{s}=1").matches(graph))) for s in SCOPES]
    everything = set().union(*scopes)
    timed = set(np.flatnonzero(graph.nodes_.duration_us > 0))
    assert timed <= everything
    assert not (graph.nodes_.scope == Scope.NONE)[list(timed)].any()


def test_what_an_expression_is_searched_in() -> None:
    graph = tiny().graph()
    texts = [node_text(graph, node) for node in nodes_named(graph, "aten::linear")]
    assert texts == [
        "T1 aten::linear in ProfilerStep#1",
        "T2 aten::linear in ## forward ##",
        *["T5 aten::linear in ## forward ##"] * 2,
        "T3 aten::linear in ## forward ##",
    ]
    (launch,) = nodes_named(graph, GEMM)
    assert node_text(graph, launch) == GEMM
    (malloc,) = nodes_named(graph, "cudaMalloc")
    assert node_text(graph, malloc) == "cudaMalloc"


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
    t1 = np.array([node_text(graph, n).startswith("T1") for n in range(len(graph))])
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
