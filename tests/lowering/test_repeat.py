"""A built step as one of many: what it waits for of those before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import steady_state

from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.draft import LAG_US, with_carried_edges
from perfmodel.lowering.host.measure import of_sorted
from perfmodel.lowering.host.profile import Profile
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule
from perfmodel.timeline.steady import unroll

HOST = {"T1": 1.0, "T2": 2.0, "T3": 3.0, "T4": 4.0, "T5": 5.0, "op_without_launch": 6.0}
OP_US = 1 + 2 + 4 + 3
THERE, X = Tensor((8, 32), device="cpu"), Tensor((8, 32), device="cuda:0")
RELU = Op("aten::relu", (X,))
COPY = Op("aten::copy_", (X, THERE, True))
READ = Op("aten::_local_scalar_dense", (Tensor((), device="cuda:0"),))
STREAM = LAG_US[EdgeKind.STREAM]


def step(*ops: Op, kernel_us: float) -> ExecutionGraph:
    lowered = lower(OpGraph(ops, np.zeros((0, 2), np.int64)), "cuda")
    profile = Profile({(kind, None, None): of_sorted(np.array([us])) for kind, us in HOST.items()})
    built = execution_graph(lowered, np.full(len(lowered), kernel_us), profile)
    return with_carried_edges(built, lowered).graph


def period_us(*ops: Op, kernel_us: float) -> float:
    return steady_state(step(*ops, kernel_us=kernel_us)).period_us


def ahead(op: Op, stage: str) -> Op:
    return replace(op, attributes={"pipeline": stage})


def test_long_kernels_follow_one_another_over_steps() -> None:
    assert period_us(RELU, RELU, kernel_us=100) == pytest.approx(2 * (100 + STREAM))


def test_a_host_that_takes_longer_goes_on_without_a_pause() -> None:
    assert period_us(RELU, RELU, kernel_us=1) == pytest.approx(2 * OP_US)


def test_a_loss_read_back_holds_the_host_in_every_step() -> None:
    graph = step(RELU, READ, kernel_us=100)
    found = steady_state(graph).period_us
    # The host waits for both operations, and starts the next step while nothing runs.
    issued, read = 1 + 2 + 4 + LAG_US[EdgeKind.LAUNCH], LAG_US[EdgeKind.BLOCKING_COPY] + 3
    between = LAG_US[EdgeKind.STREAM_COPY]
    assert found == pytest.approx(issued + 100 + between + 100 + read)
    assert schedule(graph).step_us[0] == pytest.approx(found)


def test_a_flag_read_amid_a_step_and_a_wait_before_the_next_each_stop_the_device() -> None:
    """As a gradient scaler reads whether to take the optimizer's step: nothing runs from the end of
    the copy until the host, which waited, has launched; and again behind the wait."""
    sync = Op("torch::cuda::synchronize", attributes={"waits_for": "device"})
    launched = 1 + 2 + 4 + LAG_US[EdgeKind.LAUNCH]
    read = LAG_US[EdgeKind.STREAM_COPY] + 100 + LAG_US[EdgeKind.BLOCKING_COPY] + 3
    waited = LAG_US[EdgeKind.HOST_SYNC]
    found = period_us(RELU, RELU, READ, RELU, RELU, sync, kernel_us=100)
    first = launched + 100 + STREAM + 100 + read
    assert found == pytest.approx(first + launched + 100 + STREAM + 100 + waited)
    unread = period_us(RELU, RELU, RELU, RELU, kernel_us=100)
    assert unread == pytest.approx(4 * (100 + STREAM))


def test_a_host_that_launches_longer_than_kernels_run_is_seen_whole_behind_a_read() -> None:
    """Behind the read each of many short kernels waits for its launch."""
    short = [RELU] * 5
    found = period_us(RELU, READ, *short, kernel_us=0.5)
    read = 1 + 2 + 4 + LAG_US[EdgeKind.LAUNCH_COPY] + 0.5 + LAG_US[EdgeKind.BLOCKING_COPY] + 3
    assert found == pytest.approx(OP_US + read + len(short) * OP_US)


def test_copies_ahead_overlap_with_the_step_before() -> None:
    piped = step(ahead(COPY, "prefetch"), RELU, kernel_us=100)
    assert steady_state(piped).period_us == pytest.approx(100 + STREAM)
    in_line = period_us(COPY, RELU, kernel_us=100)
    assert in_line == pytest.approx(200 + STREAM + LAG_US[EdgeKind.STREAM_COPY])


def test_copies_that_take_longest_decide() -> None:
    found = steady_state(step(*[ahead(COPY, "prefetch")] * 3, RELU, kernel_us=100))
    assert found.period_us == pytest.approx(3 * (100 + LAG_US[EdgeKind.STREAM_COPY]))
    assert next(iter(found.by_resource())) == "0/gpu0/copy"


def test_a_batch_is_copied_distributed_and_computed_in_three_steps() -> None:
    graph = step(ahead(COPY, "prefetch"), ahead(RELU, "distribute"), RELU, kernel_us=100)
    carried = graph.carried
    assert carried is not None
    name = [graph.resources[at].rpartition("/")[2] for at in graph.nodes_.resource.tolist()]
    rows = np.flatnonzero(carried.edges.kind == EdgeKind.EVENT_WAIT)
    found = {
        (name[carried.edges.source[at]], name[carried.edges.target[at]]): int(carried.distance[at])
        for at in rows
    }
    assert found == {("copy", "input"): 1, ("input", "compute"): 1, ("copy", "compute"): 2}
    # The computation of the third step ends behind two copies' and distributions' starts.
    ends = schedule(unroll(graph, 4))
    assert ends.step_us[-1] == pytest.approx(100 + STREAM)


@pytest.mark.parametrize("kernel_us", [0.5, 12, 100])
@pytest.mark.parametrize("ops", [(RELU,), (RELU, READ), (RELU, COPY, RELU), (READ, RELU, RELU)])
def test_steps_one_after_the_other_come_to_the_same_period(
    ops: tuple[Op, ...], kernel_us: float
) -> None:
    many = tuple(replace(op, step=at) for at in range(4) for op in ops)
    steps = schedule(step(*many, kernel_us=kernel_us)).step_us
    assert steps[-1] == pytest.approx(period_us(*ops, kernel_us=kernel_us))


def test_several_steps_stay_as_they_are() -> None:
    ops = (RELU, replace(RELU, step=1))
    assert step(*ops, kernel_us=1).carried is None
