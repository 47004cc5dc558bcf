"""Operations of one stream keep their order, whatever their timestamps say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import STREAM, Tiny, edges_of, lags_of, made_graph, nodes_named

from perfmodel.errors import GraphError
from perfmodel.timeline.graph.kinds import STREAM_KINDS, EdgeKind
from perfmodel.timeline.graph.streams import MAX_BRANCHES
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule


def queued(*kernels: tuple[float, float], one_launch: bool = False) -> ExecutionGraph:
    """Kernels named a, b, ... of one stream, launched one by one or by one graph launch."""
    t = Tiny()
    t.step(1, 0, 1000)
    t.op("aten::a", 1, 100)
    if one_launch:
        correlation = t.call("cudaGraphLaunch", 2, 3)
    for at, span in enumerate(kernels):
        if one_launch:
            t.kernel(*span, chr(ord("a") + at), STREAM, correlation)
        else:
            t.launch(2 + at, 2.5 + at, span, chr(ord("a") + at))
    return t.graph()


def test_each_operation_follows_the_one_before_it() -> None:
    graph = queued((10, 20), (22, 30), (32, 40))
    assert edges_of(graph, EdgeKind.STREAM) == [("a", "b"), ("b", "c")]


def test_rounding_of_whole_microseconds_is_no_overlap() -> None:
    graph = queued((10, 20), (18, 30))
    assert edges_of(graph, EdgeKind.STREAM_OVERLAP) == []


def test_timestamps_that_overlap_keep_their_order() -> None:
    graph = queued((10, 20), (15, 30), (31, 40))
    assert edges_of(graph, EdgeKind.STREAM_OVERLAP) == [("a", "b")]
    assert edges_of(graph, EdgeKind.STREAM) == [("a", "c"), ("b", "c")]
    # Half of `a` was left when `b` began; so it is when `a` takes ten times as long.
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "a")] = 100
    timeline = schedule(graph, duration)
    start = {label: timeline.start_us[nodes_named(graph, label)[0]] for label in "abc"}
    assert (start["a"], start["b"], start["c"]) == (10, 60, 111)


def test_branches_of_one_graph_launch_run_at_once_and_what_follows_waits_for_all() -> None:
    graph = queued((10, 50), (12, 20), (21, 30), (51, 60), one_launch=True)
    assert edges_of(graph, EdgeKind.STREAM_OVERLAP) == [("a", "b"), ("a", "c")]
    assert edges_of(graph, EdgeKind.STREAM_GRAPH) == [("a", "d"), ("b", "c"), ("c", "d")]
    assert not graph.warnings
    assert schedule(graph).start_us == pytest.approx(graph.nodes_.start_us, abs=1.01)


def test_gaps_within_a_graph_launch_have_a_lag_of_their_own() -> None:
    t = Tiny()
    t.step(1, 0, 1000)
    t.op("aten::a", 1, 100)
    t.launch(2, 3, [(10, 20), (21, 30), (31, 40)], call="cudaGraphLaunch")
    for at, start in enumerate((46, 62)):
        t.launch(4 + at, 4.5 + at, (start, start + 10))
    graph = t.graph()
    assert lags_of(graph, EdgeKind.STREAM_GRAPH) == [1]
    assert lags_of(graph, EdgeKind.STREAM) == [6]


def test_more_at_once_than_are_told_apart() -> None:
    spans = [(10 + at, 1000 + at) for at in range(3 * MAX_BRANCHES)]
    graph = queued(*((start + 5 * at, end) for at, (start, end) in enumerate(spans)))
    into = np.bincount(graph.edges_.target[np.isin(graph.edges_.kind, EdgeKind.STREAM_OVERLAP)])
    assert into.max() <= MAX_BRANCHES
    schedule(graph)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=8),
    st.lists(st.floats(0, 5), min_size=8, max_size=8),
    st.booleans(),
)
def test_no_what_if_changes_the_order(
    spans: list[tuple[int, int]], factors: list[float], one_launch: bool
) -> None:
    graph = queued(*((10 + at, 10 + at + us) for at, us in spans), one_launch=one_launch)
    device = np.flatnonzero(graph.on_device)
    device = device[np.lexsort((graph.nodes_.end_us[device], graph.nodes_.start_us[device]))]
    duration = graph.nodes_.duration_us.copy()
    duration[device] *= factors[: len(device)]
    timeline = schedule(graph, duration)
    assert (np.diff(timeline.start_us[device]) >= -1e-6).all()
    overlapping = (graph.edges_.overlap_frac > 0) & np.isin(
        graph.edges_.kind, (*STREAM_KINDS, EdgeKind.STREAM_OVERLAP)
    )
    if not overlapping.any():
        assert (timeline.end_us[device][:-1] <= timeline.start_us[device][1:] + 3).all()


def test_a_graph_that_loses_the_order_of_a_stream_is_refused() -> None:
    graph = made_graph(
        {"begin": ("m", 0, 0), "a": ("gpu", 0, 10), "b": ("gpu", 10, 10), "end": ("n", 20, 0)},
        [("begin", "a"), ("begin", "b"), ("a", "end"), ("b", "end")],
    )
    with pytest.raises(GraphError, match=r"gpu: 'b' would start 10\.0 us before 'a'"):
        schedule(graph)
