"""Memory over time: peaks, series of bounded length, and allocations that do not pair."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import Tiny

from perfmodel.errors import TraceError
from perfmodel.timeline.memory import (
    MAX_POINTS,
    memory_timelines,
)

GB = 10**9


def memory(t: Tiny, at: Any, size: Any, total: Any = None, address: int = 1, **more: Any) -> None:
    args = {"Device Type": 1, "Device Id": 0, "Bytes": size, "Addr": address}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 8 * GB}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
    t.events.append(event | {"pid": 1, "tid": 1, "ts": at, "args": args | more})


def step() -> Tiny:
    t = Tiny()
    t.step(7, 100, 300)
    t.op("aten::empty", 110, 290)
    return t


def test_the_peak_and_when() -> None:
    t = step()
    memory(t, 260, -2 * GB, 3 * GB, address=1)
    memory(t, 150, 2 * GB, 3 * GB, address=1)
    memory(t, 200.5, 2 * GB, 5 * GB, address=2)
    rank, links = t.linked()
    (found,) = memory_timelines(rank, links.steps)
    told = found.to_dict()
    assert (told["device"], told["events"], told["is_relative"]) == ("cuda:0", 3, False)
    assert told["peak_allocated_bytes"] == 5 * GB
    assert told["peak_at_us"] == pytest.approx(100.5)
    assert (told["peak_step"], told["peak_reserved_bytes"]) == ("ProfilerStep#7", 8 * GB)
    assert told["allocated_bytes"] == [3 * GB, 5 * GB, 3 * GB]


def test_without_totals_it_is_what_came_on_top() -> None:
    t = step()
    for at, size in ((150, -2 * GB), (160, 3 * GB), (170, -1 * GB)):
        memory(t, at, size, address=-1)
    (found,) = memory_timelines(*[t.linked()[0], t.linked()[1].steps])
    told = found.to_dict()
    assert told["is_relative"]
    assert (told["peak_allocated_bytes"], told["last_allocated_bytes"]) == (3 * GB, 2 * GB)
    assert (told["reserved_bytes"], told["peak_reserved_bytes"]) == (None, None)


def test_each_device_has_its_own_gpus_first() -> None:
    t = step()
    memory(t, 150, 64, 64, **{"Device Type": 0, "Device Id": -1})
    memory(t, 160, 128, 128, **{"Device Type": 6, "Device Id": 3})
    rank, links = t.linked()
    assert [each.device for each in memory_timelines(rank, links.steps)] == ["hip:3", "cpu"]


def test_a_long_series_is_bounded_and_keeps_its_peak() -> None:
    t = step()
    count = 3 * MAX_POINTS
    for at in range(count):
        memory(t, 100 + at / 10, 1, GB + (GB if at == 777 else at), address=at)
    rank, links = t.linked()
    told = memory_timelines(rank, links.steps)[0].to_dict()
    assert len(told["at_us"]) == len(told["allocated_bytes"]) <= MAX_POINTS
    assert max(told["allocated_bytes"]) == told["peak_allocated_bytes"] == 2 * GB
    assert told["allocated_bytes"][0] == GB
    assert told["at_us"] == sorted(told["at_us"])


def test_allocations_that_are_no_numbers_are_counted_in_a_warning() -> None:
    t = step()
    memory(t, 150, 100, 100, address=5)
    memory(t, 190, "many", 10, address=6)
    (said,) = t.rank_trace().warnings
    assert said.startswith("1 allocations are left out")


def test_other_instant_events_are_no_memory() -> None:
    t = step()
    memory(t, 150, 100, 100)
    other = {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 120, "s": "g"}
    t.events.append(other | {"pid": "Traces", "tid": "Trace PyTorch Profiler"})
    assert len(t.linked()[0].memory) == 1


def test_a_time_that_is_no_number_is_an_error_with_its_place() -> None:
    t = step()
    memory(t, "noon", 100, 100)
    with pytest.raises(TraceError, match=r"traceEvents\[2\].ts: expected microseconds"):
        t.rank_trace()
