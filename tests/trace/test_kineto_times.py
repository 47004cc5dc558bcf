"""Times of Kineto files are exact, at any epoch."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_documents import document, event

from perfmodel.trace.kineto import decode_kineto


@pytest.mark.parametrize("scale", ["int", "float", "ns"])
def test_times_are_exact_at_any_epoch(scale: str) -> None:
    start = {"int": "1712195495519689", "float": "1712195495519689.047", "ns": "0.047"}[scale]
    content = document(event("a", "cpu_op", "T", 1), baseTimeNanoseconds=17 if scale == "ns" else 0)
    trace = decode_kineto(content.replace(b'"T"', start.encode()), "here.json")
    assert trace.origin_ns == int(Decimal(start) * 1000) + (17 if scale == "ns" else 0)


def test_times_that_no_float_holds_come_late_in_a_file() -> None:
    """What was decoded before is as it is, and the rest is parsed as text."""
    times = [f"{us}.047" for us in range(20_000)] + ["1712195495519689.047"]
    events = ",".join(f'{{"ph":"X","ts":{us},"dur":0.001}}' for us in times)
    trace = decode_kineto(f'{{"traceEvents":[{events}]}}'.encode(), "here.json")
    assert trace.start_us[1] == 1
    assert trace.start_us[-1] == 1712195495519689
    assert (trace.duration_us == 0.001).all()


after_ns = st.integers(0, 2**53)  # 104 days: a float64 holds that many nanoseconds


@given(
    st.integers(0, 2 * 10**18),
    st.lists(st.tuples(after_ns, after_ns), min_size=1, max_size=9),
)
def test_times_are_exact_to_the_nanosecond(epoch: int, after: list[tuple[int, int]]) -> None:
    times = [(epoch + ts, dur) for ts, dur in after]
    events = ",".join(
        f'{{"ph":"X","ts":{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}}}'
        for ts, dur in times
    )
    trace = decode_kineto(f'{{"traceEvents":[{events}]}}'.encode(), "here.json")
    times = sorted(times, key=lambda t: (t[0], -t[1]))
    origin = times[0][0]
    assert trace.origin_ns == origin
    assert trace.start_us.tolist() == [(ts - origin) / 1000 for ts, _ in times]
    assert trace.duration_us.tolist() == [dur / 1000 for _, dur in times]
