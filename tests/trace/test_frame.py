"""Events of a trace as a frame."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tiny import COMMS, NCCL, STREAM, Tiny, trace_of

from perfmodel.trace import RankTrace
from perfmodel.trace.columns import frame_of_rank


def one_step(rank: int | None = None) -> Tiny:
    """A step of 100 us: an operator launches a kernel of 50, which a collective of 20 follows."""
    t = Tiny(rank, None if rank is None else 2, clock_ns=1_000_000)
    t.step(1, 0, 100)
    shapes = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    t.op("aten::mm", 10, 30, **shapes, **{"Ev Idx": 3})
    t.launch(15, 20, kernel=(25, 75), waves=2.0)
    t.launch(32, 34, kernel=(75, 95), name=NCCL, stream=COMMS)
    wait = {"stream": COMMS, "wait_on_stream": STREAM, "wait_on_cuda_event_record_corr_id": 101}
    t.event("cuda_sync", "Stream Wait Event", (31, 31), COMMS, **wait)
    return t


def test_no_column_is_lost() -> None:
    """All of a rank that has a row per event, but the place in the file."""
    arrays = {each.name for each in fields(RankTrace) if each.type in ("Ints", "Floats")}
    assert arrays - {"file_index"} <= set(frame_of_rank(one_step().rank_trace()))


def test_a_step_by_hand() -> None:
    events = trace_of(one_step(0), one_step(1)).events
    assert events.groupby("rank").size().tolist() == [7, 7]
    operator = events[events["name"] == "aten::mm"].iloc[1]
    assert (operator["rank"], operator["category"], operator["stream"]) == (1, "cpu_op", -1)
    assert (operator["start_us"], operator["duration_us"]) == pytest.approx((10.0, 20.0))
    assert operator["input_shapes"].replace(" ", "") == "[[2,3],[3,4]]"
    kernel = events[events["category"] == "kernel"].iloc[0]
    assert (kernel["waves"], kernel["world_size"]) == (2.0, 2)
