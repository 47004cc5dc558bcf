"""Predictions from shapes of several ranks: collectives start when the last rank is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import TraceError
from perfmodel.hardware import cluster, node, with_settings
from perfmodel.lowering.host import Profile, Statistic
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.prediction import predict
from perfmodel.prediction.scheduled import (
    HostCosts,
    ScheduledSteps,
    costs_of,
    schedule_jointly,
    schedule_shapes,
)
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.timeline.graph.kinds import NodeKind

MACHINE = cluster("dgx-1")
VALUES = Tensor((1 << 20,), device="cuda:0")


def _profile(each_us: float) -> Profile:
    one = Statistic(1, each_us, 0.0, *(each_us,) * 5, each_us)
    kinds = ("T1", "T2", "T3", "T4", "T5", "op_without_launch")
    return Profile({(kind, None, None): one for kind in kinds})


COSTS = HostCosts(_profile(5), 1.0, "", {1: _profile(50)})
"""Rank 1 has a host ten times as slow."""


def _reduce(name: str = "allreduce", elements: int = 1 << 20) -> Op:
    about = {
        "collective": "all_reduce" if name == "allreduce" else "all_to_all",
        "process_group": "0",
        "group_size": "2",
        "dtype": "fp32",
        "in_elements": str(elements),
        "out_elements": str(elements),
    }
    return Op("record_param_comms", (VALUES,), attributes=about)


def _graph(rank: int, *ops: Op) -> OpGraph:
    return OpGraph(ops, rank=rank, world_size=2, source=f"rank{rank}.json")


RELU = Op("aten::relu", (VALUES,))


def _met(*graphs: OpGraph) -> ScheduledSteps:
    alone = [schedule_shapes(graph, MACHINE, COSTS) for graph in graphs]
    return schedule_jointly(alone, [graph.source for graph in graphs])


def test_the_fast_rank_waits_for_the_slow_one() -> None:
    ops = (RELU, _reduce(), RELU)
    alone = [schedule_shapes(_graph(rank, *ops), MACHINE, COSTS) for rank in (0, 1)]
    found = _met(_graph(0, *ops), _graph(1, *ops))
    graph, timeline = found.timeline.graph, found.timeline
    assert graph.arrivals is not None
    transfers, arrivals = graph.arrivals.T
    starts, ends = timeline.start_us[transfers], timeline.end_us[transfers]
    assert len(set(starts.tolist())) == len(set(ends.tolist())) == 1
    np.testing.assert_allclose(starts, timeline.end_us[arrivals].max())
    fast, slow = timeline.step_us
    assert slow == pytest.approx(alone[1].timeline.step_us[0])
    assert alone[0].timeline.step_us[0] < fast
    assert (graph.nodes_.kind[transfers] == NodeKind.COLLECTIVE).all()
    assert sorted(found.piece[transfers]) == [1, 4]
    own = found.piece[found.timeline.graph.nodes_.rank == 1]
    assert sorted({*own.tolist()} - {-1}) == [3, 4, 5]


@pytest.mark.parametrize(
    "groups",
    [
        ({"process_group": "94594108284448"}, {"process_group": "94428220485728"}),
        (
            {"process_group": "7", "group_ranks": "0,1"},
            {"process_group": "9", "group_ranks": "0,1"},
        ),
    ],
)
def test_groups_that_each_rank_calls_otherwise_meet(groups: tuple[dict[str, str], ...]) -> None:
    graphs = [
        _graph(rank, replace(_reduce(), attributes={**_reduce().attributes, **about}))
        for rank, about in enumerate(groups)
    ]
    arrivals = _met(*graphs).timeline.graph.arrivals
    assert arrivals is not None
    assert len(arrivals) == 2


def test_groups_of_other_names_do_not_meet() -> None:
    graphs = [
        _graph(rank, replace(_reduce(), attributes={**_reduce().attributes, "process_group": name}))
        for rank, name in enumerate("12")
    ]
    assert _met(*graphs).timeline.graph.arrivals is None


def test_a_transfer_takes_what_the_largest_share_takes() -> None:
    large = _graph(1, _reduce(elements=1 << 26))
    one = schedule_shapes(large, MACHINE, COSTS)
    found = _met(_graph(0, _reduce(elements=1 << 10)), large)
    assert found.timeline.graph.arrivals is not None
    transfers = found.timeline.graph.arrivals[:, 0]
    taken = found.timeline.end_us[transfers] - found.timeline.start_us[transfers]
    np.testing.assert_allclose(taken, one.durations.duration_us.max())


def test_collectives_that_never_meet_name_ranks_and_collective() -> None:
    with pytest.raises(TraceError, match=r"rank1\.json: comes to 'all_to_all' where rank0"):
        _met(_graph(0, _reduce()), _graph(1, _reduce("alltoall")))


def test_a_prediction_holds_every_rank_and_the_slowest_stands_for_the_job() -> None:
    graphs = [_graph(rank, RELU, _reduce(), RELU) for rank in (0, 1)]
    result = predict_shapes(graphs, MACHINE, name="two", costs=COSTS)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert result.rank.rank == 1
    assert {row["family"]: row["count"] for row in result.families} == {
        "elementwise": 2,
        "communication": 1,
    }
    assert result.coverage["kernels"] == 3
    waiting, working = (rank.comm_us for rank in result.ranks)
    assert waiting > working


def test_a_rank_alone_waits_for_nobody() -> None:
    graph = _graph(0, RELU, _reduce())
    result = predict_shapes([graph], MACHINE, name="one", costs=replace(COSTS, of_rank={}))
    assert len(result.ranks) == 1


def test_stalls_count_in_a_profile_of_ones_own_and_not_in_the_packages() -> None:
    graph = OpGraph((Op("aten::relu", (VALUES,), (VALUES,)),))
    rare = Statistic(100, 9.0, 30.0, *(2.0,) * 5, 2.0)
    kinds = ("T1", "T2", "T3", "T4", "T5", "op_without_launch")
    profile = Profile({(kind, None, None): rare for kind in kinds})
    launched = []
    of_package = replace(costs_of(MACHINE), profile=profile, ratio=1.0)
    for costs in (HostCosts(profile, 1.0, ""), of_package):
        nodes = schedule_shapes(graph, MACHINE, costs).timeline.graph.nodes_
        launched.append(nodes.duration_us[nodes.kind == NodeKind.LAUNCH].tolist())
    assert launched == [[9.0], [2.0]]


@pytest.mark.parametrize("software", [None, "fbgemm"])
def test_one_profile_times_every_host_by_the_speed_of_its_thread(software: str | None) -> None:
    names = ("dgx-1", "dgx-a100-80gb", "dgx-h100", "hgx-mi300x")
    costs = {name: costs_of(cluster(name), software=software) for name in names}
    assert {(id(each.profile), each.note) for each in costs.values()} == {
        (id(costs["dgx-1"].profile), costs["dgx-1"].note)
    }
    speeds = {name: cluster(name).node.host.single_thread_ratio for name in names}
    for name, each in costs.items():
        assert each.ratio * speeds[name] == pytest.approx(costs["dgx-1"].ratio * speeds["dgx-1"])


def test_a_step_that_its_host_bounds_takes_as_long_beside_every_gpu() -> None:
    nodes = [
        with_settings(node(name), ["host.single_thread_ratio=1", "node.gpus=1"])
        for name in ("dgx-1", "dgx-a100-80gb", "hgx-b200", "hgx-mi300x")
    ]
    found = predict("criteo-kaggle", hardware=nodes, batch=512)
    steps_us = [result.step_us for result in found.results]
    assert max(steps_us) < 1.05 * min(steps_us)
    assert sum("host overheads: h100-inference" in line for line in found.warnings) == 1
