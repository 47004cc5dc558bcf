"""Schedule, binding predecessor and slack, on graphs small enough for paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline.graph.drawn import any_trace, quick
from tiny import GEMM, Tiny, made_graph, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import deciding_edges, measured, schedule, step_us_of_many

SIX = {
    "begin": ("host", 100.0, 0.0),
    "launch a": ("host", 100.0, 5.0),
    "launch b": ("host", 105.0, 5.0),
    "a": ("gpu", 107.0, 20.0),
    "b": ("gpu", 130.0, 10.0),
    "sync": ("host", 140.0, 4.0),
}
"""Two kernels on one stream, launched 2 us ahead, 1 us apart; the host waits for the second."""

EDGES = [
    ("begin", "launch a"),
    ("launch a", "launch b"),
    ("launch a", "a", 2.0),
    ("launch b", "b", 2.0),
    ("a", "b", 1.0),
    ("launch b", "sync"),
    ("b", "sync", 3.0),
]


def six(**columns: object) -> ExecutionGraph:
    return made_graph(SIX, EDGES, **columns)


def starts(graph: ExecutionGraph, duration_us: np.ndarray | None = None) -> dict[str, float]:
    return dict(zip(graph.labels, schedule(graph, duration_us).start_us.tolist(), strict=True))


def test_a_graph_of_six_nodes() -> None:
    graph = six()
    assert starts(graph) == {
        "begin": 100,
        "launch a": 100,
        "launch b": 105,
        "a": 107,  # 105 + 2
        "b": 128,  # 107 + 20 + 1; its launch alone would have allowed 112
        "sync": 141,  # 128 + 10 + 3
    }
    assert schedule(graph).step_us.tolist() == [45]
    assert measured(graph).step_us.tolist() == [44]


def test_other_durations() -> None:
    graph = six()
    duration = graph.nodes_.duration_us.copy()
    duration[3] = 1
    # Now its launch decides when b starts: 110 + 2.
    assert starts(graph, duration)["b"] == 112
    assert schedule(graph, duration).step_us.tolist() == [12 + 10 + 3 + 4]
    assert graph.nodes_.duration_us[3] == 20, "the graph's own durations stay"


def test_the_measured_starts_do_not_count_but_where_nothing_else_does() -> None:
    moved = {name: (on, start + 1000, us) for name, (on, start, us) in SIX.items()}
    graph = made_graph(moved, EDGES)
    assert starts(graph)["begin"] == 1100
    late = made_graph(SIX | {"b": ("gpu", 5000.0, 10.0)}, EDGES)
    assert starts(late)["b"] == 128


def test_a_release_holds_a_node_back() -> None:
    graph = six()
    graph.nodes_.release_us[3] = 300
    assert starts(graph)["b"] == 321


def test_a_share_of_the_source_may_overlap_its_target() -> None:
    overlap = np.zeros(len(EDGES))
    overlap[4] = 0.25  # the last quarter of a
    graph = six(overlap=overlap)
    assert starts(graph)["b"] == 107 + 15 + 1
    duration = graph.nodes_.duration_us * 2
    assert starts(graph, duration)["b"] == 112 + 30 + 1


def test_a_negative_lag_lets_the_two_overlap() -> None:
    graph = made_graph({"a": ("t", 0, 10), "b": ("t", 8, 10)}, [("a", "b", -2.0)])
    assert starts(graph)["b"] == 8


def test_the_binding_predecessor_is_the_one_that_came_last() -> None:
    graph = six()
    edges = deciding_edges(schedule(graph))
    assert edges[0] == -1
    names = [graph.labels[n] for n in graph.edges_.source[edges[1:]]]
    assert names == ["begin", "launch a", "launch a", "a", "b"]
    assert graph.edges_.lag_us[edges[1:]].tolist() == [0, 0, 2, 1, 3]
    duration = graph.nodes_.duration_us.copy()
    duration[3] = 1
    deciding = deciding_edges(schedule(graph, duration))[4]
    assert graph.labels[graph.edges_.source[deciding]] == "launch b"


def test_of_equals_the_one_that_crosses_resources_binds() -> None:
    nodes = {"host": ("t", 0, 10), "kernel": ("gpu", 0, 10), "next": ("t", 10, 5)}
    for edges in [("host", "next"), ("kernel", "next")], [("kernel", "next"), ("host", "next")]:
        graph = made_graph(nodes, edges)
        at = [edge[0] for edge in edges].index("kernel")
        graph.edges_.kind[at] = EdgeKind.HOST_SYNC
        deciding = deciding_edges(schedule(graph))[2]
        assert graph.labels[graph.edges_.source[deciding]] == "kernel"


def test_a_release_that_comes_last_binds_nothing() -> None:
    graph = six()
    graph.nodes_.release_us[4] = 500
    assert deciding_edges(schedule(graph))[4] == -1


def test_slack() -> None:
    nodes = {
        "begin": ("host", 0.0, 0.0),
        "long": ("gpu", 0.0, 50.0),
        "short": ("side", 0.0, 20.0),
        "behind short": ("side", 20.0, 5.0),
        "nobody waits": ("other", 0.0, 5.0),
        "end": ("host", 50.0, 0.0),
    }
    edges = [
        *(("begin", name) for name in ("long", "short", "nobody waits")),
        *(("short", "behind short"), ("long", "end"), ("behind short", "end", 2.0)),
    ]
    graph = made_graph(nodes, edges)
    assert schedule(graph).slack_us.tolist() == [0, 0, 23, 23, np.inf, 0]


def test_the_timeline_as_a_frame() -> None:
    frame = schedule(six()).to_frame()
    assert frame.start_us.tolist() == [100, 100, 105, 107, 128, 141]
    assert frame.label.tolist() == list(SIX)
    assert len(frame.slack_us) == 6


def test_a_trace_scheduled_with_other_durations() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 10, 40)
    t.launch(20, 25, kernel=(30, 130))
    t.call("cudaDeviceSynchronize", 50, 140)
    graph = t.graph()
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, GEMM)] = 40
    assert schedule(graph, duration).step_us.tolist() == [140]
    duration[nodes_named(graph, GEMM)] = 0
    # Now nothing is waited for: what is left of the call is its own 10 us, from 50 on.
    assert schedule(graph, duration).step_us.tolist() == [50 + 10 + 60]


@quick
@given(any_trace(), st.data())
def test_a_node_may_take_longer_by_its_slack_and_no_more(t: Tiny, data: st.DataObject) -> None:
    graph = t.graph()
    timeline = schedule(graph)
    slack = timeline.slack_us
    assert (slack >= -1e-6).all()
    ends = timeline.end_us[graph.marks.end]
    node = data.draw(st.integers(0, len(graph) - 1))
    longer = graph.nodes_.duration_us.copy()
    longer[node] += min(slack[node], 1e5)
    np.testing.assert_allclose(schedule(graph, longer).end_us[graph.marks.end], ends, atol=1e-6)
    if np.isfinite(slack[node]) and not graph.edges_.overlap_frac.any():
        longer[node] += 10
        assert (schedule(graph, longer).end_us[graph.marks.end] > ends + 9).any()


@quick
@given(any_trace())
def test_every_binding_predecessor_explains_the_start(t: Tiny) -> None:
    graph = t.graph()
    timeline = schedule(graph)
    binding, edges = deciding_edges(timeline), graph.edges_
    free = binding < 0
    assert timeline.start_us[free] == pytest.approx(graph.nodes_.release_us[free])
    held = np.flatnonzero(~free)
    own = edges.where(binding[held])
    ends = timeline.end_us[own.source] + own.lag_us
    no_overlap = ~np.isin(own.kind, [EdgeKind.SM_OCCUPANCY, EdgeKind.STREAM_OVERLAP])
    np.testing.assert_allclose(timeline.start_us[held][no_overlap], ends[no_overlap], atol=1e-6)


@quick
@given(any_trace(), st.integers(0, 2**16))
def test_many_configurations_at_once_are_each_as_alone(tiny: Tiny, seed: int) -> None:
    graph = tiny.graph()
    factor = np.random.default_rng(seed).uniform(0.1, 3.0, (len(graph), 3))
    taken = graph.nodes_.duration_us[:, None] * factor
    each = [schedule(graph, taken[:, at]).step_us for at in range(3)]
    np.testing.assert_allclose(step_us_of_many(graph, taken), np.stack(each, axis=1), atol=1e-6)
