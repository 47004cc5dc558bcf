"""What holds for the graph and the schedule of every trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from timeline.graph.drawn import any_trace, explained_trace, quick
from tiny import Tiny

from perfmodel.base.arrays import Floats
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.timeline.schedule import measured, schedule

TINY_US = 1e-6


@quick
@given(any_trace())
def test_every_start_has_a_reason(t: Tiny) -> None:
    graph = t.graph()
    timeline = schedule(graph)
    reason = graph.nodes_.release_us.copy()
    ready = graph.edges_.ready_us(timeline.start_us, graph.nodes_.duration_us)
    np.maximum.at(reason, graph.edges_.target, ready)
    np.testing.assert_allclose(timeline.start_us, reason, atol=TINY_US)


@quick
@given(any_trace())
def test_the_makespan_is_at_least_the_load_of_every_resource(t: Tiny) -> None:
    graph = t.graph()
    timeline = schedule(graph)
    edges = graph.edges_
    on = graph.nodes_.resource
    within = on[edges.source] == on[edges.target]
    for resource in np.unique(on):
        own = on == resource
        in_a_row = len(np.unique(edges.target[within & own[edges.target]]))
        if in_a_row < own.sum() - 1:
            continue  # operations that overlapped when measured run side by side
        load = graph.nodes_.duration_us[own].sum()
        # Neighbours on a stream may overlap by the (negative) constant lag between them, and by
        # what they overlapped when measured.
        there = within & (on[edges.target] == resource)
        shared = edges.lag_us[there].clip(max=0).sum()
        taken = graph.nodes_.duration_us[edges.source[there]]
        shared -= (edges.overlap_frac[there] * taken).sum()
        span = timeline.end_us[own].max() - timeline.start_us[own].min()
        assert span >= load + shared - TINY_US


@quick
@given(any_trace(), st.data())
def test_no_longer_duration_ends_anything_sooner(t: Tiny, data: st.DataObject) -> None:
    graph = t.graph()
    before = schedule(graph)
    longer = graph.nodes_.duration_us.copy()
    for node in data.draw(st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=4)):
        longer[node] += data.draw(st.floats(0, 500))
    after = schedule(graph, longer)
    assert (after.start_us >= before.start_us - TINY_US).all()
    assert (after.end_us >= before.end_us - TINY_US).all()


def shuffled(graph: ExecutionGraph, seed: int) -> tuple[ExecutionGraph, Floats]:
    """The same graph with nodes and edges in another order; and where each old node is now."""
    random = np.random.default_rng(seed)
    new = random.permutation(len(graph))
    old = np.argsort(new)
    nodes = Nodes(**{name: column[old] for name, column in vars_of(graph.nodes_).items()})
    order = random.permutation(len(graph.edges_))
    edges = {name: column[order] for name, column in vars_of(graph.edges_).items()}
    edges["source"], edges["target"] = new[edges["source"]], new[edges["target"]]
    marks = graph.marks
    return replace(
        graph,
        nodes_=nodes,
        edges_=Edges(**edges),
        marks=StepMarks(marks.rank, marks.name, new[marks.start], new[marks.end]),
        labels=tuple(graph.labels[i] for i in old),
        annotations=tuple(graph.annotations[i] for i in old),
    ), new


def vars_of(columns: Nodes | Edges) -> dict[str, np.ndarray]:
    return {name: getattr(columns, name) for name in columns.__dataclass_fields__}


@quick
@given(any_trace(), st.integers(0, 1000))
def test_the_schedule_does_not_depend_on_the_order_of_nodes_and_edges(t: Tiny, seed: int) -> None:
    graph = t.graph()
    other, new = shuffled(graph, seed)
    np.testing.assert_array_equal(schedule(other).start_us[new], schedule(graph).start_us)
    np.testing.assert_array_equal(schedule(other).step_us, schedule(graph).step_us)


@quick
@given(any_trace())
def test_the_order_of_events_in_the_file_does_not_matter(t: Tiny) -> None:
    graph = t.graph()
    t.events.sort(key=lambda event: (-event["ts"], event["tid"]))
    other = t.graph()
    ties = {(e["ts"], e["tid"]) for e in t.events}
    if len(ties) == len(t.events):  # what stands at one time is told apart by the file's order
        np.testing.assert_allclose(schedule(other).step_us, schedule(graph).step_us)


@quick
@given(any_trace())
def test_lags_are_constants_of_their_kind(t: Tiny) -> None:
    edges = t.graph().edges_
    for kind in np.unique(edges.kind):
        assert len(np.unique(edges.lag_us[edges.kind == kind])) == 1


@quick
@given(explained_trace())
def test_a_trace_that_constants_explain_is_replayed_exactly(t: Tiny) -> None:
    graph = t.graph()
    truth, replayed = measured(graph), schedule(graph)
    np.testing.assert_allclose(replayed.start_us, truth.start_us, atol=TINY_US)
    np.testing.assert_allclose(replayed.step_us, truth.step_us, atol=TINY_US)
    lags = {EdgeKind(kind): lag for kind, lag in zip(*lag_table(graph), strict=True)}
    assert all(lag == 0 for kind, lag in lags.items() if kind == EdgeKind.PROGRAM)


def lag_table(graph: ExecutionGraph) -> tuple[list[int], list[float]]:
    kinds, first = np.unique(graph.edges_.kind, return_index=True)
    return kinds.tolist(), graph.edges_.lag_us[first].tolist()


@quick
@given(any_trace())
def test_every_edge_is_satisfied_and_every_node_ends_after_it_starts(t: Tiny) -> None:
    graph = t.graph()
    timeline = schedule(graph)
    edges, nodes = graph.edges_, graph.nodes_
    assert (nodes.duration_us >= 0).all()
    assert np.isfinite(nodes.start_us).all()
    assert np.isfinite(timeline.start_us).all()
    assert (timeline.end_us >= timeline.start_us).all()
    ready = edges.ready_us(timeline.start_us, nodes.duration_us)
    assert (timeline.start_us[edges.target] >= ready - TINY_US).all()
    assert (timeline.start_us >= nodes.release_us).all()
