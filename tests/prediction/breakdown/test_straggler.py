"""Transfer, waiting and the straggler: by hand, and as the shared traces' accounting has it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tiny import COMMS, NCCL, Tiny, graph_of, trace_of

from perfmodel.prediction import predict
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.prediction.breakdown.waiting import (
    DATA_LOADING,
    HOST,
    KERNELS,
    LOOKUPS,
    STARTS_LATE,
    rank_waiting,
)
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.schedule import measured, schedule
from perfmodel.trace import read
from perfmodel.validate.evaluate.jobs import evaluate_trace


def _rank(
    number: int, *, kernel_us: float = 40.0, host_us: float = 0.0, loading_us: float = 0.0
) -> Tiny:
    """A step: loading, a kernel, an all-reduce behind it that lasts until 300."""
    t = Tiny(number, 2)
    t.step(1, 0, 400)
    t.note("enumerate(DataLoader)#_Loader.__next__", 5, 10 + loading_us)
    at = 12 + loading_us
    t.op("aten::mm", at, at + 20 + host_us)
    launch = at + 10 + host_us
    t.launch(launch, launch + 5, kernel=(launch + 8, launch + 8 + kernel_us), name="volta_sgemm")
    t.op("record_param_comms", at + 25 + host_us, at + 40 + host_us)
    t.call("cudaStreamWaitEvent", at + 26 + host_us, at + 27 + host_us)
    arrival = launch + 8 + kernel_us + 2
    t.launch(at + 28 + host_us, at + 32 + host_us, kernel=(arrival, 300), name=NCCL, stream=COMMS)
    return t


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        ({"kernel_us": 140.0}, KERNELS),
        ({"host_us": 100.0}, HOST),
        ({"loading_us": 100.0}, DATA_LOADING),
    ],
)
def test_the_late_rank_is_named_with_what_made_it_late(late: dict[str, float], cause: str) -> None:
    graph = graph_of(_rank(0), _rank(1, **late))
    found = rank_waiting(measured(graph))
    assert found is not None
    assert (found.straggler, found.cause) == (1, cause)
    assert found.late_us[cause] == pytest.approx(100)
    assert found.waiting_us == {0: pytest.approx(100), 1: pytest.approx(0)}
    assert found.transfer_us[0] == found.transfer_us[1]
    assert found.held_up_us == {0: 0.0, 1: pytest.approx(100)}
    replayed = rank_waiting(schedule(graph))
    assert replayed is not None
    assert replayed.waiting_us[0] == pytest.approx(100, abs=1)


@pytest.mark.parametrize("marked", [True, False])
def test_one_rule_says_which_rank_stands_for_the_job(marked: bool) -> None:
    """The others wait for rank 1; without marks of steps, what rank 0 does behind makes its window
    the longest."""
    ranks = _rank(0), _rank(1, kernel_us=140.0)
    ranks[0].op("aten::item", 300, 700)
    if not marked:
        for rank in ranks:
            del rank.events[0]
    trace = trace_of(*ranks)
    found, replayed = breakdown(trace), predict(trace).results[0]
    assert found.waiting is not None
    assert found.waiting.straggler == 1
    assert found.slowest.rank == replayed.rank.rank == int(marked)
    assert replayed.rank.measured is not None
    shown_us = found.slowest.steps[0].accounting.step_us
    assert shown_us == replayed.rank.measured["step_us"]
    assert evaluate_trace(trace).more["traces"][0]["step_us"] == shown_us


@pytest.mark.parametrize("name", ["split_embedding_codegen_forward_unweighted_kernel", "tbe"])
def test_lookups_are_told_from_other_kernels_measured_or_modelled(name: str) -> None:
    ranks = _rank(0), _rank(1, kernel_us=140.0)
    for event in (event for rank in ranks for event in rank.events):
        if event["name"] == "volta_sgemm":
            event["name"] = name
    found = rank_waiting(measured(graph_of(*ranks)))
    assert found is not None
    assert (found.straggler, found.cause) == (1, LOOKUPS)


def test_why_a_rank_is_late_is_found_when_it_is_asked_and_kept() -> None:
    found = predict(trace_of(_rank(0), _rank(1, host_us=100.0))).results[0]
    assert found.waiting is not None
    assert "late_us" not in vars(found.waiting)
    before = pickle.dumps(found)
    assert found.straggler == pickle.loads(before).straggler == found.to_dict()["straggler"]
    assert "late_us" in vars(found.waiting)


def test_a_rank_alone_waits_for_nobody() -> None:
    assert rank_waiting(measured(_rank(0).graph())) is None


def test_dlrm_ranks_as_the_golden_accounting(reference: Path) -> None:
    """Transfer and waiting of four of eight ranks, to the microsecond."""
    text = (reference / "golden" / "multirank_accounting.json").read_text()
    golden = json.loads(text)["dlrm_v100x8"]["collectives_aligned"]
    folder = reference / "traces" / "dlrm_v100x8"
    found = rank_waiting(measured(build_graph(read(folder))))
    assert found is not None
    for rank, whole_us in enumerate(golden["sum_dur_per_rank_us"]):
        assert found.transfer_us[rank] == pytest.approx(golden["sum_min_us"], abs=1)
        assert found.waiting_us[rank] == pytest.approx(whole_us - golden["sum_min_us"], abs=8)
    assert (found.straggler, found.cause) == (2, STARTS_LATE)
    answer = breakdown(read(folder))
    assert answer.to_dict()["straggler"] == found.to_dict()
    assert answer.ranks[1].meets_us == {"transfer_us": 3452.0, "waiting_us": 7884.0}


@pytest.mark.parametrize(
    "folder", ["sst_long_a2a_optimizer_3_29220", "sst_long_a2a_optimizer_5_qcomm_54105"]
)
def test_torchrecs_straggler_is_a_host(reference: Path, folder: str) -> None:
    """Rank 2's host is 20 ms late before the exchange forward, in every step."""
    text = (reference / "golden" / "multirank_accounting.json").read_text()
    golden = json.loads(text)[f"torchrec_v100x4/{folder}"]["collectives_aligned"]
    graph = build_graph(read(reference / "traces" / "torchrec_v100x4" / folder))
    for timeline in (measured(graph), schedule(graph)):
        found = rank_waiting(timeline)
        assert found is not None
        assert (found.straggler, found.cause) == (2, HOST)
        assert found.late_us[HOST] == pytest.approx(18_000, rel=0.1)
    assert graph.arrivals is not None
    transfers = graph.arrivals[:, 0]
    own = transfers[graph.nodes_.rank[transfers] == 0]
    assert graph.nodes_.duration_us[own].sum() == pytest.approx(golden["sum_min_us"], rel=1e-3)
