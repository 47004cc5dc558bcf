"""The main thread's time between operators, as a trace measured it."""

from __future__ import annotations

import pytest
from tiny import Tiny

from perfmodel.lowering.observed import HostTimes, Stretch, measured_stretches
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.kinds import Cause


def stretches(t: Tiny) -> list[Stretch]:
    rank, links = t.linked()
    return list(measured_stretches(rank, links, build_rank(rank, links)))


def two_steps() -> Tiny:
    """Each step: 30 before the first operator, 10 between, 40 behind the last."""
    t = Tiny()
    for begin in (0, 200):
        t.step(begin, begin, begin + 150)
        t.op("aten::mm", begin + 30, begin + 60)
        t.launch(begin + 40, begin + 50, kernel=(begin + 55, begin + 70))
        t.op("aten::relu", begin + 70, begin + 110)
        t.launch(begin + 80, begin + 90, kernel=(begin + 95, begin + 105))
    return t


def test_gaps_and_what_is_at_the_bounds_of_steps() -> None:
    found = stretches(two_steps())
    assert [(each.step, each.duration_us, each.at_bounds) for each in found] == [
        (0, 30.0, True),
        (0, 10.0, False),
        (0, 40.0, True),
        (1, 30.0, True),
        (1, 10.0, False),
        (1, 40.0, True),
    ]
    assert HostTimes(tuple(found), 2.0).step_us(Cause.HOST_T1) == pytest.approx(160)


def test_what_is_between_operators_goes_with_the_one_behind_it() -> None:
    gap = next(each for each in stretches(two_steps()) if not each.at_bounds)
    assert gap.is_left({gap.op})
    assert not gap.is_left(())


def test_operators_within_data_loading_belong_to_it() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100)
    t.op("aten::stack", 20, 60)
    t.op("aten::mm", 120, 160)
    t.launch(130, 140, kernel=(145, 170))
    found = stretches(t)
    loading = sum(each.duration_us for each in found if each.cause == Cause.DATA_LOADING)
    # Before the operator, in it, and behind it up to the next: its middle is in the loading.
    assert loading == 20 + 40 + 60
    assert sum(each.duration_us for each in found) == loading + 40
    assert all(e.is_left(()) for e in found if e.cause == Cause.DATA_LOADING)
