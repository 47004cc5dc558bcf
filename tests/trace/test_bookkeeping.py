"""Events that do not fit what the profiler counted, or what called them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_documents import document, event
from tiny import Tiny

from perfmodel.trace.categories import Category
from perfmodel.trace.kineto import decode_kineto
from perfmodel.trace.recording import checked_recording

OPS = 20


def ops(**changes: Any) -> list[dict[str, Any]]:
    """Operators of 10 us, one each 20 us, numbered from 0."""
    return [
        event("aten::add", "cpu_op", 20 * i, 10, tid=5, args={"Ev Idx": i, "External id": i + 1})
        for i in range(OPS)
    ]


def faults(events: list[dict[str, Any]], *, is_whole: bool = True) -> list[str]:
    rank = decode_kineto(document(*events), "file")
    return checked_recording(rank, is_whole=is_whole)[1]


@given(st.integers(0, OPS - 2))
def test_a_missing_event_leaves_a_gap(gone: int) -> None:
    kept = [each for number, each in enumerate(ops()) if number != gone]
    (fault,) = faults(kept)
    assert fault.startswith("1 of the 20 events that the profiler numbered")
    assert faults(kept, is_whole=False) == []


def test_numbers_of_instant_events_count() -> None:
    instants = [
        {"ph": "i", "name": name, "ts": 5, "args": {"Ev Idx": OPS + i}}
        for i, name in enumerate(("[memory]", "[OutOfMemory]"))
    ]
    later = event("aten::mul", "cpu_op", 500, 1, tid=5, args={"Ev Idx": OPS + 2})
    assert faults([*ops(), *instants, later]) == []
    (fault,) = faults([*ops(), instants[0], later])
    assert fault.startswith("1 of the 23 events")


def test_filtered_files_say_nothing_of_what_is_not_there() -> None:
    assert faults([each | {"args": {"Ev Idx": 1000 * i}} for i, each in enumerate(ops())]) == []


@pytest.mark.parametrize(("start", "said"), [(2000, False), (5000, True), (1200, True)])
def test_a_step_begins_where_the_one_before_ended(start: float, said: bool) -> None:
    t = Tiny()
    for number, at in ((1, 0), (2, 1000), (3, start)):
        t.step(number, at, at + 1000)
    faults = checked_recording(t.rank_trace())[1]
    assert any("steps do not begin where" in fault for fault in faults) is said


@pytest.mark.parametrize(("factor", "word"), [(1e3, "more than 500"), (1e-3, "less than 0.1")])
def test_times_in_another_unit(factor: float, word: str) -> None:
    scaled = [each | {"ts": each["ts"] * factor, "dur": each["dur"] * factor} for each in ops()]
    (fault,) = faults(scaled)
    assert word in fault
    assert fault.endswith("are times microseconds?")


def launched() -> Tiny:
    t = Tiny()
    t.op("aten::mm", 0, 400)
    for start in (10, 110, 210):
        t.launch(start, start + 5, kernel=(start + 20, start + 60))
    return t


def test_a_stream_runs_in_the_order_of_its_launches() -> None:
    rank = launched().rank_trace()
    assert checked_recording(rank)[1] == []
    work = rank.is_device.nonzero()[0]
    rank.correlation[work[[0, 1]]] = rank.correlation[work[[1, 0]]]
    _, (early,) = checked_recording(rank)
    assert "begin before one of their stream that was launched earlier" in early


def test_calls_that_launch_and_are_not_known_to() -> None:
    rank = launched().rank_trace()
    rank.name[rank.of(Category.RUNTIME)[0]] = rank.strings.intern("cudaBegin")
    said = "1 calls launched operations of the device, though calls of their name are not known to"
    assert checked_recording(rank)[1] == [f"{said}: cudaBegin"]


@pytest.mark.parametrize(("begins_us", "is_said"), [(0, False), (150, True)])
def test_work_that_no_step_launched(begins_us: float, is_said: bool) -> None:
    t = launched()
    t.step(1, begins_us, 400)
    said = "2 of 3 device operations were launched outside all steps"
    assert (said in checked_recording(t.rank_trace())[1]) is is_said


def test_operations_without_launch_calls_and_calls_without_operations() -> None:
    rank = launched().rank_trace()
    rank.correlation[rank.is_device] = -1
    assert checked_recording(rank)[1] == [
        "none of the 3 device operations has its launch call in the file"
    ]
    rank.correlation[:] = -1  # nor does a call say which it launched
    assert "none of the 3 device operations" in checked_recording(rank)[1][0]
    t = Tiny()
    t.call("cudaLaunchKernel", 10, 15)
    assert checked_recording(t.rank_trace())[1] == [
        "1 kernel launches, but no device operation is in the file"
    ]
