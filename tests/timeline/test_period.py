"""Steps that follow one another: hand-made traces whose period can be counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from timeline.graph.drawn import any_trace, quick
from tiny import COMMS, NCCL, WORKER, Tiny, graph_of

from perfmodel.explore.periods import many_periods_us
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.timeline.graph.kinds import Scope
from perfmodel.timeline.graph.recorded_steps import recorded_steps, step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured, schedule, steady_steps
from perfmodel.timeline.steady import Relaxation, max_cycle_ratio


def lagging(steps: int = 3) -> Tiny:
    """Steps of 100 us, each of which launches two kernels of 60 us: the device is 20 us later after
    each."""
    t = Tiny()
    for number in range(steps):
        begun, device = 100 * number, 20 + 120 * number
        t.step(number, begun, begun + 100)
        t.op("aten::mm", begun + 5, begun + 30)
        t.launch(begun + 10, begun + 15, kernel=(device, device + 60))
        t.op("aten::mm", begun + 40, begun + 90)
        t.launch(begun + 50, begun + 55, kernel=(device + 60, device + 120))
    return t


def periods(graph: ExecutionGraph, **factors: float) -> np.ndarray:
    """Per rank and step; `host`, `gpu`: by how much both take longer."""
    host, gpu = factors.get("host", 1.0), factors.get("gpu", 1.0)
    factor = np.where(graph.nodes_.scope == Scope.HOST, host, 1.0)
    factor = np.where(graph.on_device, gpu, factor)
    steps = np.arange(len(graph.marks.name) // len(set(graph.marks.rank.tolist())))
    return Periods.of(graph, steps).step_us(graph.nodes_.duration_us * factor)


def test_a_device_that_falls_behind_decides_whatever_the_host_does() -> None:
    graph = graph_of(lagging())
    assert periods(graph) == pytest.approx(np.full((1, 3), 120.0))
    assert periods(graph, host=0.0) == pytest.approx(np.full((1, 3), 120.0))
    assert periods(graph, gpu=4.0) == pytest.approx(np.full((1, 3), 480.0))
    assert measured(graph).step_us == pytest.approx([100.0, 100.0, 100.0])


def test_a_host_that_is_slower_decides() -> None:
    graph = graph_of(lagging())
    assert periods(graph, gpu=0.25) == pytest.approx(np.full((1, 3), 100.0))
    assert periods(graph, host=2.0) == pytest.approx(np.full((1, 3), 200.0))


def test_a_lag_is_said_and_the_critical_path_is_the_devices() -> None:
    found = breakdown(lagging().trace())
    (caution,) = [line for line in found.cautions if "behind the host" in line]
    assert "20.0 us behind" in caution
    assert "take 120.0 us, the host's 100.0 us" in caution
    path = found.ranks[0].steps[1].critical_path_by_kind
    assert sum(path.values()) == pytest.approx(100.0)
    assert path["compute"] == pytest.approx(100.0)


def test_work_belongs_to_the_step_that_launched_it() -> None:
    graph = graph_of(lagging())
    step = step_of_nodes(graph)
    assert step[graph.on_device].tolist() == [0, 0, 1, 1, 2, 2]
    assert graph.nodes_.start_us[graph.on_device][-1] > graph.nodes_.start_us[graph.marks.end[-1]]


def test_what_was_launched_before_the_recording_is_part_of_no_step_of_several() -> None:
    t = lagging()
    t.kernel(1, 15, name="before")
    graph = graph_of(t)
    assert periods(graph) == pytest.approx(np.full((1, 3), 120.0))


def test_a_sole_step_holds_it() -> None:
    t = lagging(1)
    t.kernel(1, 15, name="before")
    graph = graph_of(t)
    assert periods(graph)[0, 0] >= 14 + 120


def test_without_device_work_the_host_is_the_period() -> None:
    t = Tiny()
    for number in range(2):
        t.step(number, 50 * number, 50 * number + 50)
        t.op("aten::add", 50 * number + 10, 50 * number + 30)
    assert periods(graph_of(t)) == pytest.approx(np.full((1, 2), 50.0))


def test_a_window_keeps_its_schedule() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 30)
    t.launch(10, 15, kernel=(20, 90))
    graph = graph_of(t)
    assert recorded_steps(graph, np.arange(1)) == []
    assert periods(graph) == pytest.approx(schedule(graph).step_us.reshape(1, 1))


def test_steps_that_overlap_are_the_ones_recorded() -> None:
    """Marks that overlap by rounding leave each piece of the host in one step."""
    t = Tiny()
    t.step(1, 0, 51)
    t.step(2, 50, 100)
    t.op("aten::add", 5, 45)
    t.op("aten::add", 60, 90)
    graph = graph_of(t)
    step = step_of_nodes(graph)
    assert set(step.tolist()) == {-1, 0, 1}
    assert periods(graph).max() <= 51.0 + 1e-9


def test_a_queue_deeper_than_the_file_holds_nothing_back() -> None:
    """Two launches per step: 1,024 are 512 steps ahead, as far as the host may run."""
    (step, *_) = recorded_steps(graph_of(lagging()), np.arange(3))
    assert 512 in step.distance.tolist()


def test_ranks_that_meet_have_one_period() -> None:
    """Rank 0 is slow before the collective, rank 1 behind it: together slower than each."""
    ranks = []
    for rank, (before, after) in enumerate([(60, 20), (20, 60)]):
        t = Tiny(rank, 2, where=f"rank{rank}.json")
        for number in range(3):
            begun = 110 * number
            t.step(number, begun, begun + 110)
            t.op("nccl", begun, begun + before)
            t.launch(
                begun + before - 5,
                begun + before,
                kernel=(begun + before, begun + 70),
                name=NCCL,
                stream=COMMS,
            )
            t.call("cudaStreamSynchronize", begun + before, begun + 70)
            t.op("aten::add", begun + 70, begun + 70 + after)
        ranks.append(t)
    graph = graph_of(*ranks)
    found = periods(graph)
    assert found.shape == (2, 3)
    assert found[0] == pytest.approx(found[1])
    assert found[0, 1] <= 110.0 + 1e-9


def test_other_threads_do_not_bound_a_step() -> None:
    """A thread that sleeps most of the step is no work that the step must wait for."""
    t = Tiny()
    for number in range(2):
        t.step(number, 100 * number, 100 * number + 100)
        t.op("aten::add", 100 * number + 10, 100 * number + 30)
        t.op("poll", 100 * number + 5, 100 * number + 6, thread=WORKER)
    assert periods(graph_of(t), host=0.5) == pytest.approx(np.full((1, 2), 50.0))


def with_steps(t: Tiny) -> Tiny:
    """A drawn trace whose time is three steps."""
    times = [(e["ts"], e["ts"] + e["dur"]) for e in t.events if e["cat"] != "user_annotation"]
    begun, over = min(a for a, _ in times), max(b for _, b in times) + 3
    t.events = [e for e in t.events if not e["name"].startswith("ProfilerStep")]
    for number in range(3):
        part = (over - begun) / 3
        t.step(number, begun + number * part, begun + (number + 1) * part)
    return t


stepped = any_trace().map(with_steps)


@quick
@given(stepped)
def test_runs_give_the_period_of_their_nodes_and_its_path_sums_to_it(t: Tiny) -> None:
    graph = graph_of(t)
    steps = steady_steps(measured(graph))
    whole = Periods.of(graph, steps)
    assert whole.repeated
    for each, us in zip(whole.repeated, whole.step_us(graph.nodes_.duration_us)[0], strict=True):
        edges, own_us = each.step.edges, graph.nodes_.duration_us[each.step.nodes]
        ways = Relaxation(np.arange(len(own_us)), edges.source, edges.target)
        weight = own_us[edges.source] * (1 - edges.overlap_frac) + edges.lag_us
        plain = max_cycle_ratio(ways, weight, each.step.distance)
        assert us == pytest.approx(plain.ratio)
        path = each.path(graph, graph.nodes_.duration_us)
        assert sum(o - b for *_, b, o in path) == pytest.approx(us, abs=1e-6)


@quick
@given(stepped)
def test_many_at_once_are_those_one_by_one(t: Tiny) -> None:
    graph = graph_of(t)
    found = Periods.of(graph, steady_steps(measured(graph)))
    factors = np.random.default_rng(0).uniform(0.2, 5.0, (len(graph), 5))
    taken_us = graph.nodes_.duration_us[:, None] * factors
    each = [found.step_us(taken_us[:, at]) for at in range(5)]
    assert many_periods_us(found, taken_us) == pytest.approx(np.stack(each, axis=-1))
