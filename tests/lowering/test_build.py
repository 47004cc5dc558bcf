"""The execution graph of lowered ops: what runs on which resource, in what order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.draft import LAG_US, Built
from perfmodel.lowering.host.measure import ENGINE, T1, of_sorted
from perfmodel.lowering.host.profile import Profile
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.schedule import schedule
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

X = Tensor((8, 32), device="cuda:0")
HOST = {"T1": 1.0, "T2": 2.0, "T3": 3.0, "T4": 4.0, "T5": 5.0, "op_without_launch": 6.0}
LAUNCH, STREAM = LAG_US[EdgeKind.LAUNCH], LAG_US[EdgeKind.STREAM]


def profile() -> Profile:
    return Profile({(kind, None, None): of_sorted(np.array([us])) for kind, us in HOST.items()})


def built(*ops: Op, kernel_us: float = 10.0) -> Built:
    lowered = lower(OpGraph(ops), "cuda")
    return execution_graph(lowered, np.full(len(lowered), kernel_us), profile())


def step_us(*ops: Op, kernel_us: float = 10.0) -> list[float]:
    return schedule(built(*ops, kernel_us=kernel_us).graph).step_us.tolist()


RELU, VIEW = Op("aten::relu", (X,)), Op("aten::view", (X, (256,)))


def test_the_host_decides_where_kernels_are_short() -> None:
    assert step_us(VIEW, RELU, VIEW, kernel_us=0.5) == pytest.approx([7 + (1 + 2 + 4 + 3) + 7])


def test_threads_hand_over_where_the_profile_knows_what_that_takes() -> None:
    node = replace(VIEW, thread=AUTOGRAD_THREAD)
    assert step_us(VIEW, node, node) == pytest.approx([3 * 7])
    rows = {
        (T1, ENGINE[AUTOGRAD_THREAD], AUTOGRAD_THREAD): of_sorted(np.array([100.0])),
        (T1, ENGINE[MAIN_THREAD], MAIN_THREAD): of_sorted(np.array([50.0])),
    }
    knows = Profile({**profile().rows, **rows})
    graph = execution_graph(lower(OpGraph((VIEW, node, node)), "cuda"), np.zeros(0), knows).graph
    assert schedule(graph).step_us.tolist() == pytest.approx([3 * 7 + 150])
    lowered = lower(OpGraph((VIEW, node, VIEW)), "cuda")
    graph = execution_graph(lowered, np.zeros(0), knows).graph
    assert schedule(graph).step_us.tolist() == pytest.approx([3 * 7 + 150])


def test_the_device_decides_where_kernels_are_long() -> None:
    first = 1 + 2 + 4 + LAUNCH
    wait = LAG_US[EdgeKind.HOST_SYNC]
    assert step_us(RELU, RELU, kernel_us=100) == pytest.approx([first + 100 + STREAM + 100 + wait])


def test_a_blocking_copy_holds_the_host() -> None:
    scalar = Op("aten::_local_scalar_dense", (Tensor((), device="cuda:0"),))
    copied = 1 + 2 + 4 + LAG_US[EdgeKind.LAUNCH_COPY] + 100 + LAG_US[EdgeKind.BLOCKING_COPY]
    assert step_us(scalar, VIEW, kernel_us=100) == pytest.approx([copied + 3 + 7])


def test_a_device_that_is_waited_for_stands_still_until_the_host_has_launched_again() -> None:
    """All of its streams are waited for, those that a pipeline copies on as well."""
    there = Tensor((8, 32), device="cpu")
    ahead = Op("aten::copy_", (X, there, True), attributes={"pipeline": "prefetch"})
    sync = Op("torch::cuda::synchronize", attributes={"waits_for": "device"})
    found = schedule(built(RELU, ahead, ahead, sync, RELU, kernel_us=100).graph)
    kernels = [at for at, name in enumerate(found.graph.labels) if name == "relu"]
    copied = (1 + 2 + 4 + 3) + 1 + 2 + 4 + LAG_US[EdgeKind.LAUNCH_COPY] + 100
    copied += LAG_US[EdgeKind.STREAM_COPY] + 100
    again = LAG_US[EdgeKind.HOST_SYNC] + (1 + 2 + 4 + LAUNCH)
    first = 1 + 2 + 4 + LAUNCH
    assert found.start_us[kernels].tolist() == pytest.approx([first, copied + again])
    behind = replace(RELU, attributes={"waits_for": "device"})
    assert step_us(behind, RELU, kernel_us=100) == pytest.approx(
        [first + 100 + again + 100 + LAG_US[EdgeKind.HOST_SYNC]]
    )


def test_a_copy_waits_for_the_kernels_before_it_unless_a_pipeline_sends_it() -> None:
    """Source: PyTorch copies on the current stream; its documentation of CUDA semantics."""
    there, here = Tensor((8, 32), device="cpu"), Tensor((8, 32), device="cuda:0")
    copy = Op("aten::copy_", (here, there, True))
    apart = replace(copy, attributes={"pipeline": "prefetch"})
    issued = 2 * (1 + 2 + 4) + 3 + LAG_US[EdgeKind.LAUNCH_COPY]
    behind = (1 + 2 + 4) + LAUNCH + 100 + LAG_US[EdgeKind.STREAM_COPY]
    wait = LAG_US[EdgeKind.HOST_SYNC]
    assert step_us(RELU, copy, kernel_us=100) == pytest.approx([behind + 100 + wait])
    assert step_us(RELU, apart, kernel_us=100) == pytest.approx([issued + 100 + wait])


def test_a_collective_waits_for_kernels_but_not_for_other_groups_or_copies_ahead() -> None:
    there, here = Tensor((8, 32), device="cpu"), Tensor((8, 32), device="cuda:0")
    ahead = Op("aten::copy_", (here, there, True), attributes={"pipeline": "prefetch"})
    about = {"collective": "all_reduce", "group_size": "8", "in_elements": "256", "dtype": "fp32"}
    first = Op("c10d::allreduce_", ((X,),), attributes={**about, "process_group": "0"})
    other = replace(first, attributes={**first.attributes, "stream": "comm keys"})
    ops = (RELU, ahead, first, other)
    lowered = lower(OpGraph(ops, np.array([[0, 2]])), "cuda")
    graph = execution_graph(lowered, np.full(len(lowered), 10.0), profile()).graph
    edges, resource = graph.edges_, graph.nodes_.resource
    waits = np.flatnonzero(edges.kind == EdgeKind.EVENT_WAIT)
    found = {
        (graph.resources[resource[edges.source[at]]], graph.resources[resource[edges.target[at]]])
        for at in waits.tolist()
    }
    assert found == {
        ("0/gpu0/compute", "0/gpu0/comm"),
        ("0/gpu0/compute", "0/gpu0/comm keys"),
    }


def test_the_host_does_not_wait_at_the_end_of_a_step() -> None:
    first = 1 + 2 + 4 + LAUNCH + 100 + LAG_US[EdgeKind.HOST_SYNC]
    steps = step_us(RELU, replace(RELU, step=1), replace(RELU, step=2), kernel_us=100)
    assert steps == pytest.approx([first, STREAM + 100, STREAM + 100])


def test_what_ran_before_the_first_step_is_no_step() -> None:
    graph = built(Op("aten::relu", (X,), step=-1), Op("aten::relu", (X,), step=0)).graph
    assert graph.marks.name == ("step 0",)


def test_several_launches_of_one_piece_share_its_time() -> None:
    found = built(Op("aten::topk", (X, 3, -1, True, True)))
    graph = found.graph
    kernels = np.flatnonzero(found.piece >= 0)
    assert graph.nodes_.duration_us[kernels].tolist() == [5, 5]
    assert (graph.edges_.kind == EdgeKind.LAUNCH).sum() == 2
