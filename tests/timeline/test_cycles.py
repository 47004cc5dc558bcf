"""The maximum cycle ratio: by hand, and against all cycles of small graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.timeline.steady import (
    CycleRatio,
    Relaxation,
    critical_nodes,
    earliest_values,
    max_cycle_ratio,
)

Edge = tuple[int, int, float, int]
"""Source, target, weight, distance."""


def ratio_of(count: int, edges: list[Edge]) -> CycleRatio:
    source, target, weight, distance = map(np.array, zip(*edges, strict=True))
    ways = Relaxation(np.arange(count), source, target)
    return max_cycle_ratio(ways, weight.astype(float), distance.astype(np.int64))


def brute(edges: list[Edge]) -> float:
    graph = nx.DiGraph()
    for source, target, weight, distance in edges:
        graph.add_edge(source, target, weight=weight, distance=distance)
    found = [0.0]
    for cycle in nx.simple_cycles(graph):
        around = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        total = {
            key: sum(graph.edges[pair][key] for pair in around) for key in ("weight", "distance")
        }
        found.append(total["weight"] / total["distance"])
    return max(found)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """Edges of distance 0 go forward; one edge at most from node to node."""
    count = draw(st.integers(1, 6))
    edges = []
    for source in range(count):
        for target in range(count):
            if draw(st.booleans()):
                least = 0 if source < target else 1
                weight = draw(st.integers(0, 50))
                edges.append((source, target, float(weight), draw(st.integers(least, 2))))
    return count, edges or [(0, 0, 1.0, 1)]


def test_of_two_cycles_the_longer_per_step_decides() -> None:
    # 0 -> 1 -> 0 takes 3 + 4 in one step; 1 -> 2 -> 1 takes 5 + 13 in two.
    edges = [(0, 1, 3.0, 0), (1, 0, 4.0, 1), (1, 2, 5.0, 0), (2, 1, 13.0, 2)]
    found = ratio_of(3, edges)
    assert found.ratio == 9
    assert sorted(found.cycle.tolist()) == [2, 3]


def test_without_a_cycle_nothing_holds_it_back() -> None:
    found = ratio_of(2, [(0, 1, 3.0, 0), (0, 1, 9.0, 1)])
    assert (found.ratio, len(found.cycle)) == (0, 0)


@given(graphs())
def test_as_all_cycles_say(drawn: tuple[int, list[Edge]]) -> None:
    count, edges = drawn
    found = ratio_of(count, edges)
    assert found.ratio == pytest.approx(brute(edges))
    chosen = [edges[at] for at in found.cycle]
    if chosen:
        assert [edge[1] for edge in chosen] == [edge[0] for edge in [*chosen[1:], chosen[0]]]
        total = sum(edge[2] for edge in chosen), sum(edge[3] for edge in chosen)
        assert total[0] / total[1] == pytest.approx(found.ratio)


@given(graphs(), st.integers(0, 35), st.integers(1, 9))
def test_more_weight_never_lowers_it(drawn: tuple[int, list[Edge]], which: int, more: int) -> None:
    count, edges = drawn
    at = which % len(edges)
    source, target, weight, distance = edges[at]
    heavier = [*edges[:at], (source, target, weight + more, distance), *edges[at + 1 :]]
    assert ratio_of(count, heavier).ratio >= ratio_of(count, edges).ratio - 1e-9


def test_the_earliest_values_are_the_longest_ways() -> None:
    source, target = np.array([0, 0, 1]), np.array([1, 2, 2])
    way, at_least = np.array([2.0, 3.0, 4.0]), np.array([0.0, -9.0, -9.0])
    ways = Relaxation(np.arange(3), source, target)
    assert earliest_values(ways, way, at_least).tolist() == [0, 2, 6]


def test_nodes_that_a_tight_cycle_fixes_are_critical() -> None:
    # 0 <-> 1 is tight; 2 hangs behind it; 3 has a tight edge to itself, 4 a slack one.
    source, target = np.array([0, 1, 1, 3, 4]), np.array([1, 0, 2, 3, 4])
    way, value = np.array([5.0, -5.0, 1.0, 0.0, -1.0]), np.array([0.0, 5.0, 6.0, 9.0, 9.0])
    assert critical_nodes(source, target, way, value).tolist() == [True, True, True, True, False]
    count = 20_000
    ring = np.arange(count)
    assert critical_nodes(ring, (ring + 1) % count, np.zeros(count), np.zeros(count)).all()


def test_rounding_along_a_long_cycle_is_not_taken_for_a_longer_one() -> None:
    count = 100_000  # sums of 4.7 all round up: edge by edge, the cycle takes more than its period
    source = np.arange(count)
    ways = Relaxation(source, source, (source + 1) % count)
    distance = (source == count - 1).astype(np.int64)
    found = max_cycle_ratio(ways, np.full(count, 4.7), distance)
    assert found.ratio == pytest.approx(4.7 * count, rel=1e-9)
