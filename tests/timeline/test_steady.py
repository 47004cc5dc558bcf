"""Steps that repeat: periods by hand, and against many steps written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import made_graph, steady_state

from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.graph.kinds import EdgeKind, NodeKind
from perfmodel.timeline.graph.types import CarriedEdges, Edges, ExecutionGraph
from perfmodel.timeline.schedule import schedule
from perfmodel.timeline.steady import STEPS_AHEAD, unroll

Link = tuple[str, str, int]


def repeating(
    nodes: dict[str, tuple[str, float]], within: list[tuple[str, str]], carried: list[Link]
) -> ExecutionGraph:
    """Nodes in order as {label: (resource, duration)}; the first and the last are the marks."""
    made = {label: (on, float(at), us) for at, (label, (on, us)) in enumerate(nodes.items())}
    device = [
        NodeKind.KERNEL if on.startswith("gpu") else NodeKind.HOST for on, _ in nodes.values()
    ]
    kinds = [NodeKind.MARK, *device[1:-1], NodeKind.MARK]
    graph = made_graph(made, within, kinds=np.array(kinds, np.int64))
    graph = replace(graph, resources=tuple(f"0/{name}" for name in graph.resources))
    nodes_ = replace(graph.nodes_, release_us=np.where(graph.nodes_.release_us >= 0, 0.0, -np.inf))
    at = {label: number for number, label in enumerate(nodes)}
    source, target = ([at[link[end]] for link in carried] for end in (0, 1))
    zeros = np.zeros(len(carried))
    edges = Edges(
        np.array(source, np.int64),
        np.array(target, np.int64),
        np.full(len(carried), int(EdgeKind.PROGRAM), np.int64),
        zeros,
        zeros,
    )
    distance = np.array([link[2] for link in carried], np.int64)
    return replace(graph, nodes_=nodes_, carried=CarriedEdges(edges, distance))


def overlapped(host_us: float, kernel_us: float, *, reads_back: bool = False) -> ExecutionGraph:
    """A host that launches one kernel per step, and may wait for it."""
    within = [("begin", "launch"), ("launch", "kernel"), ("launch", "after"), ("kernel", "end")]
    within += [("after", "end")] + [("kernel", "after")] * reads_back
    nodes = {
        "begin": ("main", 0.0),
        "launch": ("main", host_us),
        "kernel": ("gpu0/compute", kernel_us),
        "after": ("main", 1.0),
        "end": ("main", 0.0),
    }
    return repeating(nodes, within, [("after", "begin", 1), ("kernel", "kernel", 1)])


@pytest.mark.parametrize(
    ("host_us", "kernel_us", "reads_back", "period_us", "bound"),
    [
        (5, 20, False, 20, "0/gpu0/compute"),
        (30, 20, False, 31, "0/main"),
        (5, 20, True, 26, "0/gpu0/compute"),
    ],
)
def test_the_host_runs_ahead_unless_it_reads_back(
    host_us: float, kernel_us: float, reads_back: bool, period_us: float, bound: str
) -> None:
    graph = overlapped(host_us, kernel_us, reads_back=reads_back)
    found = steady_state(graph)
    assert found.period_us == pytest.approx(period_us)
    assert next(iter(found.by_resource())) == bound
    assert sum(found.by_resource().values()) == pytest.approx(period_us)


def prefetched(ahead: int) -> ExecutionGraph:
    """Each step copies the batch of a later one."""
    nodes = {
        "begin": ("main", 0.0),
        "launch": ("main", 2.0),
        "copy": ("gpu0/copy", 8.0),
        "compute": ("gpu0/compute", 10.0),
        "end": ("main", 0.0),
    }
    within = [("begin", "launch"), ("launch", "copy"), ("launch", "compute"), ("compute", "end")]
    within += [("copy", "compute")] * (not ahead)
    carried = [("launch", "begin", 1), ("copy", "copy", 1), ("compute", "compute", 1)]
    return repeating(nodes, within, carried + [("copy", "compute", ahead)] * (ahead > 0))


def test_a_prefetched_batch_does_not_stand_in_front_of_the_step() -> None:
    assert schedule(prefetched(0)).step_us.tolist() == [20]
    for ahead in (0, 1, 2):
        assert steady_state(prefetched(ahead)).period_us == pytest.approx(10)


def test_a_dependency_over_two_steps_counts_half() -> None:
    graph = overlapped(1, 20)
    carried = graph.carried
    assert carried is not None
    apart = replace(graph, carried=replace(carried, distance=np.array([1, 2])))
    found = steady_state(apart)
    assert found.period_us == pytest.approx(10)
    assert sum(found.by_resource().values()) == pytest.approx(10)


def two_loaders(second_us: float) -> ExecutionGraph:
    """Two loaders of 50 us and `second_us`, each before a kernel; what follows waits for both."""
    nodes = {
        "begin": ("main", 0.0),
        "load a": ("a", 50.0),
        "load b": ("b", second_us),
        "kernel a": ("gpu0/a", 5.0),
        "kernel b": ("gpu0/b", 5.0),
        "sum": ("gpu0/a", 1.0),
        "end": ("main", 0.0),
    }
    within = [("load a", "kernel a"), ("load b", "kernel b"), ("kernel a", "sum")]
    within += [("kernel b", "sum"), ("sum", "end"), ("begin", "end")]
    carried = [("load a", "load a", 1), ("load b", "load b", 1), ("sum", "kernel a", 1)]
    return repeating(nodes, within, [*carried, ("kernel b", "kernel b", 1)])


def test_what_decides_alike_keeps_together_and_the_faster_runs_ahead() -> None:
    starts = {}
    for second_us in (50.0, 40.0):
        found = steady_state(two_loaders(second_us))
        assert found.period_us == pytest.approx(50)
        starts[second_us] = dict(zip(found.step.graph.labels, found.start_us.tolist(), strict=True))
    assert starts[50.0]["load a"] == pytest.approx(starts[50.0]["load b"])
    ahead = starts[40.0]["load a"] - starts[40.0]["load b"]
    assert ahead == pytest.approx(STEPS_AHEAD * 50)


def test_one_period_amid_others() -> None:
    found = steady_state(overlapped(5, 20))
    window = found.window()
    assert window.step_us.tolist() == [pytest.approx(20)]
    assert schedule(window.graph).graph is window.graph
    ready = window.graph.edges_.ready_us(window.start_us, window.end_us - window.start_us)
    assert (window.start_us[window.graph.edges_.target] >= ready - 1e-9).all()


@pytest.mark.parametrize(("host_us", "device_us"), [(20, 15), (15, 20)])
def test_the_path_of_a_period_is_what_decides_it(host_us: float, device_us: float) -> None:
    """A device that lags behind its host by most of a step decides nothing, though steps end there;
    where it decides, the path is its own."""
    nodes = {"launch": ("main", host_us), "kernel": ("gpu0/a", device_us), "end": ("main", 0.0)}
    within = [("launch", "kernel"), ("kernel", "end")]
    carried = [("launch", "launch", 1), ("kernel", "kernel", 1)]
    found = steady_state(repeating(nodes, within, carried))
    window = found.window()
    assert window.step_us[0] == pytest.approx(20)
    taken: dict[str, float] = {}
    for piece in critical_path(window, 0):
        name = window.graph.resources[int(window.graph.nodes_.resource[piece.node])]
        taken[name] = taken.get(name, 0.0) + piece.end_us - piece.start_us
    assert taken == pytest.approx(found.by_resource())


def test_written_out_steps_begin_where_the_one_before_ended() -> None:
    timeline = schedule(unroll(overlapped(5, 20), 4))
    assert timeline.step_us.tolist() == [25, 20, 20, 20]


@st.composite
def any_step(draw: st.DrawFn) -> ExecutionGraph:
    """Nodes on a few resources, each in order and over steps; some wait for others."""
    count = draw(st.integers(1, 8))
    names = [f"n{i}" for i in range(count)]
    where = [draw(st.sampled_from(["main", "gpu0/compute", "gpu0/copy"])) for _ in names]
    nodes = {"begin": ("main", 0.0)}
    nodes |= {n: (w, float(draw(st.integers(0, 20)))) for n, w in zip(names, where, strict=True)}
    nodes |= {"end": ("main", 0.0)}
    within = [("begin", n) for n in names] + [(n, "end") for n in names] + [("begin", "end")]
    carried: list[Link] = []
    for resource in set(where):
        own = [n for n, w in zip(names, where, strict=True) if w == resource]
        within += list(pairwise(own))
        carried.append((own[-1], own[0], 1))
    for late in range(count):
        for early in range(count):
            distance = draw(st.sampled_from([None, None, 0, 1, 2]))
            if distance == 0 and early < late:
                within.append((names[early], names[late]))
            elif distance:
                carried.append((names[early], names[late], distance))
    return repeating(nodes, within, [*carried, ("begin", "begin", 1)])


@given(any_step())
def test_the_period_is_what_many_steps_come_to(graph: ExecutionGraph) -> None:
    steps = 60
    ends = schedule(unroll(graph, steps)).end_us[unroll(graph, steps).marks.end]
    long_run = (ends[-1] - ends[steps // 2 - 1]) / (steps // 2)
    found = steady_state(graph)
    # Cycles over several steps make the ends of single steps swing by no more than a step.
    slack = schedule(graph).step_us[0] * 4 / (steps // 2)
    assert found.period_us == pytest.approx(long_run, abs=slack + 1e-9)


@given(any_step())
def test_a_period_is_no_longer_than_a_step_alone(graph: ExecutionGraph) -> None:
    assert steady_state(graph).period_us <= schedule(graph).step_us[0] + 1e-6


@given(any_step(), st.integers(0, 9), st.integers(1, 20))
def test_it_never_falls_where_a_duration_grows(
    graph: ExecutionGraph, which: int, more: int
) -> None:
    longer = graph.nodes_.duration_us.copy()
    longer[which % len(graph)] += more
    assert steady_state(graph, longer).period_us >= steady_state(graph).period_us - 1e-6


@given(any_step())
def test_the_periodic_schedule_keeps_every_edge(graph: ExecutionGraph) -> None:
    window = steady_state(graph).window()
    ready = window.graph.edges_.ready_us(window.start_us, window.end_us - window.start_us)
    assert (window.start_us[window.graph.edges_.target] >= ready - 1e-6).all()


@given(any_step())
def test_steps_that_wait_for_the_one_before_take_a_step_alone(graph: ExecutionGraph) -> None:
    carried = graph.carried
    assert carried is not None
    edges = Edges(
        graph.marks.end, graph.marks.start, np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    )
    serial = replace(graph, carried=CarriedEdges(edges, np.ones(1, np.int64)))
    assert steady_state(serial).period_us == pytest.approx(schedule(graph).step_us[0])
