"""Many configurations in one pass are what each is alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline.graph.drawn import any_trace, quick
from tiny import Tiny, made_graph

from perfmodel.errors import UsageError
from perfmodel.explore.periods import many_periods_us
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import schedule, step_us_of_many

NODES = {
    "begin": ("host", 0.0, 5.0),
    "a": ("gpu", 7.0, 20.0),
    "b": ("gpu", 28.0, 10.0),
    "sync": ("host", 41.0, 4.0),
}
EDGES = [("begin", "a", 2.0), ("begin", "sync"), ("a", "b", 1.0), ("b", "sync", 3.0)]


def four(**columns: object) -> ExecutionGraph:
    """Two kernels on one stream, and a host that waits for the second: 2 + 20 + 1 + 10 + 3 + 4."""
    return made_graph(NODES, EDGES, **columns)


def slower(graph: ExecutionGraph) -> np.ndarray:
    """The usual durations, and those where `a` takes 40."""
    slow = graph.nodes_.duration_us.copy()
    slow[graph.labels.index("a")] = 40.0
    return np.stack([graph.nodes_.duration_us, slow], axis=1)


def test_two_configurations_by_hand() -> None:
    graph = four()
    taken = slower(graph)
    assert step_us_of_many(graph, taken).tolist() == [[40.0, 60.0]]


@quick
@given(any_trace(), st.integers(1, 130), st.integers(0, 2**32 - 1))
def test_as_one_by_one(tiny: Tiny, count: int, seed: int) -> None:
    graph = tiny.graph()
    factor = np.random.default_rng(seed).uniform(0.1, 10.0, (len(graph), count))
    taken = (graph.nodes_.duration_us[:, None] * factor).astype(np.float32)
    each = [schedule(graph, column.astype(np.float64)).step_us for column in taken.T]
    found = step_us_of_many(graph, taken.astype(np.float64))
    np.testing.assert_allclose(found, np.stack(each, axis=1), atol=1e-6)


def test_overlap_is_a_share_of_each_configurations_own_duration() -> None:
    graph = four(overlap=np.array([0.0, 0.0, 0.5, 0.0]))
    assert step_us_of_many(graph, slower(graph)).tolist() == [[30.0, 40.0]]


def test_durations_of_another_graph_are_an_error() -> None:
    with pytest.raises(UsageError, match=r"expected \[4 nodes, configurations\]"):
        many_periods_us(Periods.of(four(), np.arange(1)), np.zeros((5, 3)))
