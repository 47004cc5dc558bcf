"""The whole breakdown: sums that hold for every trace, ranks, warnings, how it is written down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from timeline.graph.drawn import any_trace, quick
from timeline.handmade import busy, late_kernel
from tiny import GEMM, Tiny, nodes_named, trace_of

from perfmodel.prediction.breakdown.job import Breakdown, breakdown
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.graph.kinds import Cause


def assert_sums(found: Breakdown) -> None:
    for rank in found.ranks:
        for step in rank.steps:
            account = step.accounting
            assert sum(step.critical_path_by_kind.values()) == pytest.approx(
                account.step_us, abs=1e-6
            )
            assert sum(step.idle_by_cause.values()) == pytest.approx(account.gpu_idle_us, abs=1e-6)
            known = {*Cause} - {Cause.COMPUTE, Cause.MEMCPY}
            assert set(step.idle_by_cause) <= {cause.name.lower() for cause in known}
            assert account.gpu_active_us + account.gpu_idle_us in (
                0,
                pytest.approx(account.step_us),
            )
            assert account.gpu_active_us <= account.kernel_sum_us + 1e-6
            parts = account.exposed_comm_us + account.overlapped_comm_us
            assert parts == pytest.approx(account.comm_us)
            walked = step.idle.by_cause()
            for cause in set(walked) | set(step.idle_by_cause):
                assert step.idle_by_cause.get(cause, 0) == pytest.approx(
                    walked.get(cause, 0), abs=1e-6
                ), cause


@quick
@given(any_trace())
def test_causes_sum_to_the_idle_time_and_paths_to_the_step(t: Tiny) -> None:
    assert_sums(breakdown(t.trace()))


def test_as_a_dictionary_and_as_a_frame() -> None:
    found = breakdown(busy().trace())
    document = found.to_dict()
    assert document["schema"] == "perfmodel.breakdown/1"
    step = document["ranks"][0]["steps"][0]
    assert (step["name"], step["gpu_active_us"]) == ("ProfilerStep#1", 70)
    assert step["overheads"]["main"]["raw"]["T4"]["count"] == 4
    frame = found.to_frame()
    assert frame["rank"].tolist() == [0]
    assert frame.gpu_idle_us.tolist() == [30]
    assert frame.filter(like="idle_").drop(columns=["gpu_idle_us"], errors="ignore").sum(
        axis=1
    ).tolist() == pytest.approx([30])


def test_a_sampled_trace_is_warned_of() -> None:
    t = late_kernel()
    for number, event in enumerate(e for e in t.events if e["cat"] == "cpu_op"):
        event["args"]["External id"] = 1 + 10 * number
    assert any("sampled or filtered" in text for text in breakdown(t.trace()).warnings)


def test_two_ranks_have_their_own_devices() -> None:
    ranks = [busy(), busy()]
    found = breakdown(trace_of(*ranks))
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert [rank.steps[0].accounting.compute_us for rank in found.ranks] == [40, 40]
    graph = build_graph(trace_of(*ranks))
    assert len(nodes_named(graph, GEMM)) == 4
    assert np.unique(graph.nodes_.rank).tolist() == [0, 1]


def test_where_the_work_was_not_recorded_the_answer_says_so() -> None:
    launched = Tiny()
    launched.call("cudaLaunchKernel", 10, 20)
    found = breakdown(launched.trace())
    assert found.unrecorded.startswith("no GPU work was recorded, but 1 launch call")
    assert found.ranks[0].device == "Tesla V100-SXM2-16GB"

    calls = Tiny()
    calls.call("cudaDeviceSynchronize", 300, 900)
    found = breakdown(calls.trace())
    assert (
        "no operator and no GPU work was recorded: did it run in another process"
        in found.warnings[0]
    )

    whole = Tiny()
    whole.op("aten::mm", 0, 20)
    assert (breakdown(whole.trace()).unrecorded, breakdown(whole.trace()).warnings) == ("", [])
