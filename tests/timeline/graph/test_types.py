"""The graph itself: order, cycles, frames, networkx."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from tiny import GEMM, Tiny, made_graph

from perfmodel.errors import GraphError
from perfmodel.timeline.graph.kinds import (
    CAUSE_OF_EDGE,
    PLAUSIBLE_LAG_US,
    SCOPES,
    Cause,
    EdgeKind,
    Scope,
)
from perfmodel.timeline.graph.types import Edges
from perfmodel.timeline.schedule import schedule

IDLE_CAUSES = {*Cause} - {Cause.COMPUTE, Cause.COMMUNICATION, Cause.MEMCPY}


def small() -> Tiny:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(40, 90))
    t.call("cudaStreamSynchronize", 50, 94)
    return t


def test_every_edge_goes_forward_in_the_order() -> None:
    graph = small().graph()
    position = np.empty(len(graph), int)
    position[graph.order] = np.arange(len(graph))
    assert (position[graph.edges_.source] < position[graph.edges_.target]).all()
    assert sorted(graph.order.tolist()) == list(range(len(graph)))


def test_where_the_clocks_contradict_the_edges_the_edges_decide() -> None:
    graph = made_graph(
        {"a": ("t", 50, 1), "b": ("t", 10, 1), "c": ("t", 30, 1)}, [("a", "b"), ("b", "c")]
    )
    assert graph.order.tolist() == [0, 1, 2]
    assert schedule(graph).end_us.tolist() == [51, 52, 53]


def test_only_what_clocks_mix_up_is_sorted_as_the_whole_would_be() -> None:
    """The earliest node that is ready comes next, wherever edges go back in measured time."""
    for seed in range(60):
        random = np.random.default_rng(seed)
        count = int(random.integers(2, 40))
        back_us = random.choice([0, 3, 100])
        starts = {f"n{at}": ("t", at + random.uniform(0, back_us), 0.1) for at in range(count)}
        pairs = {tuple(sorted(random.choice(count, 2, False).tolist())) for _ in range(2 * count)}
        graph = made_graph(starts, [(f"n{a}", f"n{b}") for a, b in pairs])
        waiting, expected = set(range(count)), []
        while waiting:
            blocked = {b for a, b in pairs if a in waiting}
            expected.append(min(waiting - blocked, key=lambda n: graph.nodes_.start_us[n]))
            waiting.remove(expected[-1])
        assert graph.order.tolist() == expected, seed


def test_a_cycle_is_an_error_that_names_it() -> None:
    graph = made_graph(
        {"a": ("t", 0, 1), "b": ("t", 1, 1), "c": ("u", 2, 1), "d": ("u", 3, 1), "e": ("u", 4, 1)},
        [("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e")],
    )
    with pytest.raises(GraphError) as raised:
        schedule(graph)
    cycle = str(raised.value).split(": ")[1].split(" <- ")
    # Each comes after the one named behind it; those before and after the cycle are not in it.
    assert cycle[0] == cycle[-1]
    assert sorted(cycle[:-1]) == ["b", "c", "d"]
    assert {("b", "d"), ("c", "b"), ("d", "c")} == set(itertools.pairwise(cycle))


def test_a_node_behind_itself_is_a_cycle() -> None:
    graph = made_graph({"a": ("t", 0, 1), "b": ("t", 1, 1)}, [("a", "b"), ("b", "b")])
    with pytest.raises(GraphError, match="b <- b"):
        schedule(graph)


def test_networkx_has_the_same_nodes_and_edges() -> None:
    graph = small().graph()
    view = graph.to_networkx()
    assert (len(view), view.number_of_edges()) == (len(graph), len(graph.edges_))
    assert nx.is_directed_acyclic_graph(view)
    kernel = graph.labels.index(GEMM)
    assert view.nodes[kernel]["resource"] == "0/gpu0/stream7"
    assert view.nodes[kernel]["duration_us"] == 50
    (source,) = view.predecessors(kernel)
    edge = next(iter(view.get_edge_data(source, kernel).values()))
    edge = edge if isinstance(edge, dict) else view.edges[source, kernel]
    assert (edge["kind"], edge["lag_us"]) == ("launch", 20)


def test_two_edges_between_two_nodes_are_two_in_networkx() -> None:
    graph = made_graph({"a": ("t", 0, 1), "b": ("t", 1, 1)}, [("a", "b"), ("a", "b", 5)])
    assert graph.to_networkx().number_of_edges() == 2


def test_frames() -> None:
    graph = small().graph()
    nodes, edges = graph.nodes, graph.edges
    assert len(nodes) == len(graph)
    kernel = nodes[nodes.kind == "kernel"].iloc[0]
    assert (kernel.label, kernel.scope, kernel.cause) == (GEMM, "compute", "compute")
    assert edges[edges.kind == "launch"].lag_us.tolist() == [20]


def test_device_span_of_a_rank_that_has_none() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 10)
    graph = t.graph()
    assert [column.tolist() for column in graph.device_span(0)] == [[], []]
    assert [column.tolist() for column in small().graph().device_span(1)] == [[], []]


def test_every_kind_of_edge_has_a_cause_and_bounds() -> None:
    assert set(CAUSE_OF_EDGE) == set(PLAUSIBLE_LAG_US) == set(EdgeKind)
    assert all(cause in IDLE_CAUSES for cause in CAUSE_OF_EDGE.values())
    assert {scope for scopes in SCOPES.values() for scope in scopes} == set(Scope) - {Scope.NONE}


def test_the_idle_causes_are_those_of_the_design() -> None:
    assert {cause.name.lower() for cause in IDLE_CAUSES} == {
        *("host_t1", "host_t2", "host_t3", "host_t4", "host_t5", "host_op_without_launch"),
        *("launch_latency", "blocking_call", "hidden_sync", "allocator", "launch_queue_full"),
        *("other_stream", "sm_occupancy", "collective_wait", "data_loading", "before_window"),
        *("recording_missing", "end_of_step", "unexplained", "waiting_for_input"),
    }


def test_the_latest_edge_into_each_target() -> None:
    """Of those that tie, one that wins; among these, and where none does, the last."""
    source, target = np.array([0, 1, 2, 0, 1, 2]), np.array([5, 5, 3, 3, 3, 4])
    edges = Edges.of(source, target, EdgeKind.PROGRAM)
    ready_us = np.array([7.0, 6.0, 2.0, 2.0, 2.0, -1.0])
    assert edges.latest(ready_us).tolist() == [4, 5, 0]
    wins = np.array([False, True, True, True, False, False])
    assert edges.latest(ready_us, wins).tolist() == [3, 5, 0]
    assert not len(edges.where(np.zeros(6, bool)).latest(np.zeros(0)))
