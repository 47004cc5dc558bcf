"""Operations of a device by time: the same as looking at every one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from timeline.graph.drawn import any_trace, quick
from tiny import Tiny

from perfmodel.timeline.critical_path import DeviceWork
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.schedule import measured

times = st.floats(-10, 400)


@quick
@given(any_trace(), times, times)
def test_what_ran_within_is_that_of_a_search_through_all(t: Tiny, a: float, b: float) -> None:
    timeline = measured(build_graph(t.trace()))
    low, high = min(a, b), max(a, b)
    first, last = timeline.graph.device_span()
    device = DeviceWork.of(timeline)
    assert len(device) == len(first)
    near = (timeline.end_us[last] > low) & (timeline.start_us[first] < high)
    assert [c.tolist() for c in device.within(low, high)] == [
        first[near].tolist(),
        last[near].tolist(),
    ]
