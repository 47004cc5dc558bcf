"""What tests of hand-made graphs ask: where a node stands, and how long a step would then take."""

from __future__ import annotations

import pytest
from tiny import nodes_named

from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured, schedule


def node_of(graph: ExecutionGraph, label: str, kind: int | None = None, nth: int = 0) -> int:
    return nodes_named(graph, label, kind)[nth]


def span(graph: ExecutionGraph, node: int) -> tuple[float, float]:
    """(start, duration) of the work of a node, waiting excluded."""
    return float(graph.nodes_.start_us[node]), float(graph.nodes_.duration_us[node])


def halved(graph: ExecutionGraph, *labels: str, kind: int | None = None) -> float:
    """The first step when the nodes of these labels take half as long."""
    duration = graph.nodes_.duration_us.copy()
    for label in labels:
        duration[nodes_named(graph, label, kind)] /= 2
    return float(schedule(graph, duration).step_us[0])


def assert_replays(graph: ExecutionGraph) -> None:
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us, abs=1e-9)
