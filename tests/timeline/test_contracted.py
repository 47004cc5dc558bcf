"""A contracted graph: the same steps as a schedule, for whatever durations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graph.drawn import any_trace, quick
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny, graph_of, made_graph

from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.contracted import ContractedGraph
from perfmodel.timeline.schedule import schedule


def assert_same(graph: ExecutionGraph, seed: int) -> None:
    factor = np.random.default_rng(seed).uniform(0.0, 3.0, len(graph))
    taken = graph.nodes_.duration_us * factor
    found = ContractedGraph.of(graph).step_us(taken)
    np.testing.assert_allclose(found, schedule(graph, taken).step_us, atol=1e-6)


@quick
@given(any_trace(), st.integers(0, 2**16))
def test_steps_are_those_of_a_schedule(tiny: Tiny, seed: int) -> None:
    assert_same(tiny.graph(), seed)


def test_a_head_may_wait_for_any_number_of_others() -> None:
    """Four threads of one node each meet; a lag and an overlap are on the way."""
    nodes = {"start": ("0/main", 0.0, 0.0)}
    nodes |= {f"n{at}": (f"0/other:{at}", 0.0, 10.0 * (at + 1)) for at in range(4)}
    nodes["end"] = ("0/main", 40.0, 0.0)
    edges = [("start", f"n{at}", 0.0) for at in range(4)]
    edges += [(f"n{at}", "end", 5.0 if at == 1 else 0.0) for at in range(4)]
    graph = made_graph(nodes, edges)
    assert ContractedGraph.of(graph).step_us(graph.nodes_.duration_us) == [40.0]
    slower = graph.nodes_.duration_us.copy()
    slower[2] = 100.0
    assert ContractedGraph.of(graph).step_us(slower) == [105.0]
    shared = graph.edges_.overlap_frac.copy()
    shared[5] = 0.5
    graph = replace(graph, edges_=replace(graph.edges_, overlap_frac=shared))
    assert ContractedGraph.of(graph).step_us(slower) == [55.0]


def test_a_release_holds_a_node_back() -> None:
    nodes = {"start": ("0/main", 0.0, 0.0), "late": ("0/other:0", 30.0, 5.0)}
    nodes |= {"work": ("0/main", 0.0, 10.0), "end": ("0/main", 35.0, 0.0)}
    graph = made_graph(nodes, [("start", "work"), ("work", "end"), ("late", "end")])
    assert ContractedGraph.of(graph).step_us(graph.nodes_.duration_us) == [35.0]


def test_ranks_that_meet() -> None:
    def rank(number: int, late: float) -> Tiny:
        t = Tiny(number, 2)
        t.step(1, 0, 100)
        t.op("aten::linear", 10, 50)
        t.launch(20 + late, 25 + late, kernel=(30 + late, 70), name="ncclDevKernel_AllReduce_Sum")
        t.call("cudaDeviceSynchronize", 60, 75)
        return t

    graph = graph_of(rank(0, 0.0), rank(1, 12.0))
    assert graph.arrivals is not None
    for seed in range(5):
        assert_same(graph, seed)


@pytest.mark.parametrize("name", ["dlrm_v100x8/kineto_rank0", "train/v100_resnet50_workers0_a"])
def test_on_real_traces(reference, name: str) -> None:  # type: ignore[no-untyped-def]
    from perfmodel.graph import build_graph
    from perfmodel.trace import read

    assert_same(build_graph(read(reference / "traces" / f"{name}.json.gz")), 1)
