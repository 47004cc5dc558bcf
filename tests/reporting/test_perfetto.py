"""The Perfetto document: names, times, nesting, arrows; on a hand-made graph and a real trace."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from reporting.handmade import KERNEL, graph, relabelled
from tiny import COMMS, GEMM, NCCL, Tiny, graph_of

from perfmodel.errors import GraphError
from perfmodel.reporting.perfetto import perfetto_json
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, measured, schedule
from perfmodel.trace.kineto import decode_kineto

REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data"))


def document(of: ExecutionGraph) -> tuple[bytes, list[dict]]:
    predicted, recorded = schedule(of), measured(of)
    timelines = {"measured": recorded, "predicted": predicted}
    content = perfetto_json(timelines)
    assert content == perfetto_json(timelines)
    return content, json.loads(content, parse_constant=pytest.fail)["traceEvents"]


def named(events: list[dict], what: str) -> dict[tuple[int, int], str]:
    """Names of processes or threads by (pid, tid)."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == what}


def slices_of(events: list[dict], process: str, track: str) -> list[tuple[str, float, float]]:
    pid = next(p for (p, _), name in named(events, "process_name").items() if name == process)
    tid = next(
        t for (p, t), name in named(events, "thread_name").items() if (p, name) == (pid, track)
    )
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid]


def check_structure(events: list[dict]) -> None:
    """What viewers need: named tracks, nothing before zero, no overlap, arrows with two ends."""
    tracks = named(events, "thread_name")
    ends: dict[tuple[int, int], int] = {}
    inside: set[tuple[int, int, float]] = set()
    for event in events:
        assert event["ts"] >= 0
        assert event["ph"] in "MXsf"
        row = event["pid"], event["tid"]
        if event["ph"] != "X":
            continue
        assert row in tracks
        assert event["dur"] >= 0
        start_ns = round(event["ts"] * 1000)
        assert start_ns >= ends.get(row, 0), event
        ends[row] = start_ns + round(event["dur"] * 1000)
        inside.add((*row, event["ts"]))
    flows = [e for e in events if e["ph"] in "sf"]
    assert all((e["pid"], e["tid"], e["ts"]) in inside for e in flows)
    for phase in "sf":
        ids = [e["id"] for e in flows if e["ph"] == phase]
        assert sorted(ids) == list(range(1, len(ids) + 1))
    assert Counter(e["ph"] for e in flows)["s"] == Counter(e["ph"] for e in flows)["f"]
    tids = [tid for _, tid in tracks]
    assert len(tids) == len(set(tids))


def test_times_of_the_measured_threads_and_streams() -> None:
    _, events = document(graph())
    check_structure(events)
    assert slices_of(events, "measured rank 0", "main") == [
        ("aten::linear", 0.0, 4.0),
        ("cudaLaunchKernel", 4.0, 2.0),
        ("aten::linear", 6.0, 4.0),
        ("cudaDeviceSynchronize", 18.0, 2.0),
    ]
    assert slices_of(events, "predicted rank 0", "gpu0 stream7") == [(KERNEL, 8.0, 10.0)]


def test_path_idle_and_steps_are_tracks() -> None:
    _, events = document(graph())
    assert slices_of(events, "predicted rank 0", "critical path") == [
        ("aten::linear", 0.0, 4.0),
        ("cudaLaunchKernel", 4.0, 2.0),
        ("launch_latency", 6.0, 2.0),
        (KERNEL, 8.0, 10.0),
        ("cudaDeviceSynchronize", 18.0, 2.0),
    ]
    assert slices_of(events, "measured rank 0", "GPU idle") == [
        ("host_t2", 0.0, 4.0),
        ("host_t4", 4.0, 2.0),
        ("launch_latency", 6.0, 2.0),
        ("end_of_step", 18.0, 2.0),
    ]
    assert slices_of(events, "measured rank 0", "steps") == [("ProfilerStep#1", 0.0, 20.0)]


def test_each_rank_has_the_whole_path_of_its_step_in_one_row() -> None:
    """Rank 0 waits for rank 1: both paths go through rank 1's kernel."""
    ranks = [Tiny(number, 2) for number in range(2)]
    for t, kernel_us in zip(ranks, (40.0, 140.0), strict=True):
        t.step(1, 0, 400)
        t.op("aten::mm", 10, 30)
        t.launch(15, 20, kernel=(25, 25 + kernel_us))
        t.op("record_param_comms", 35, 50)
        t.call("cudaStreamWaitEvent", 36, 37)
        t.launch(38, 42, kernel=(30 + kernel_us, 300), name=NCCL, stream=COMMS)
        t.call("cudaDeviceSynchronize", 60, 305)
    _, events = document(graph_of(*ranks))
    check_structure(events)
    assert not any("(2)" in name for name in named(events, "thread_name").values())
    for rank in range(2):
        path = slices_of(events, f"measured rank {rank}", "critical path")
        assert sum(us for _, _, us in path) == pytest.approx(400)
        assert GEMM in {name for name, _, _ in path}


def test_an_arrow_leads_from_the_launch_to_the_kernel() -> None:
    _, events = document(graph())
    arrows = [(e["ph"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == 2 * [("s", 4.0), ("f", 8.0)]


def test_work_before_the_first_step_moves_both_timelines_alike() -> None:
    of = graph()
    of.nodes_.start_us[0], of.nodes_.duration_us[0] = 7.0, 7.0
    content, events = document(of)
    check_structure(events)
    assert json.loads(content)["otherData"]["first_step_us"] == 3.0
    assert slices_of(events, "measured rank 0", "steps")[0][1] == 3.0
    assert slices_of(events, "predicted rank 0", "steps")[0][1] == 3.0


def test_nodes_that_overlap_on_one_resource_get_two_tracks() -> None:
    of = graph()
    of.nodes_.duration_us[0] = 5.0
    content = perfetto_json({"measured": measured(of)})
    events = json.loads(content)["traceEvents"]
    check_structure(events)
    assert [name for name, _, _ in slices_of(events, "measured rank 0", "main (2)")] == [
        "cudaLaunchKernel"
    ]


@pytest.mark.parametrize("label", ['quote " and \\', "line\nbreak\x00", "lone \ud800", "→ μ"])
def test_any_label_gives_valid_json(label: str) -> None:
    events = json.loads(perfetto_json({"predicted": schedule(relabelled(label))}))["traceEvents"]
    expected = label.encode("utf-8", "replace").decode()
    assert slices_of(events, "predicted rank 0", "gpu0 stream7")[0][0] == expected


def test_a_time_that_is_no_number_is_an_error() -> None:
    timeline = measured(graph())
    broken = Timeline(timeline.graph, np.where([0, 1, 0, 0, 0, 0, 0], np.nan, 0.0), timeline.end_us)
    with pytest.raises(GraphError, match=r"node 1 \(cudaLaunchKernel\)"):
        perfetto_json({"predicted": broken})


def test_our_own_reader_reads_it_and_takes_nothing_for_a_kernel() -> None:
    content, events = document(graph())
    rank = decode_kineto(content, "exported")
    assert len(rank) == sum(e["ph"] == "X" for e in events)
    assert not rank.is_device.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dlrm_v100x8/kineto_rank2.json.gz", "train/v100_resnet_ddp_ns_resolution.json.gz"]
)
def test_a_real_trace(name: str) -> None:
    path = REFERENCE / "traces" / name
    if not path.exists():
        pytest.skip(f"reference trace {name} not found; set PERFMODEL_REFERENCE")
    from perfmodel.timeline.graph import build_graph
    from perfmodel.trace import read

    of = build_graph(read(path))
    content, events = document(of)
    check_structure(events)
    kinds = Counter(e["args"]["kind"] for e in events if e["ph"] == "X" and "dur" in e)
    assert kinds["kernel"] >= 2 * int((of.nodes_.kind == 6).sum())
    predicted = schedule(of)
    rank = of.marks.rank[0]
    path_us = sum(us for _, _, us in slices_of(events, f"predicted rank {rank}", "critical path"))
    assert path_us == pytest.approx(predicted.step_us.sum(), abs=1e-3 * len(events))
    assert len(decode_kineto(content, "exported")) == sum(e["ph"] == "X" for e in events)
