"""Launched and not yet begun: depths that can be counted on paper."""

from __future__ import annotations

import pytest
from tiny import Tiny

from perfmodel.prediction.breakdown.completeness import queue_depths


def test_depth_is_weighted_by_time() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.op("aten::mm", 0, 50)
    t.launch(0, 10, (20, 60))  # waits 10 to 20
    t.launch(12, 15, (60, 80))  # waits 15 to 60: two wait from 15 to 20
    t.launch(70, 90, (85, 95))  # begins before its call ends: does not wait
    (depth,) = queue_depths(*t.linked())
    assert depth.mean_count == pytest.approx((10 + 45) / 100)
    assert depth.max_count == 2
    assert depth.empty_frac == pytest.approx(0.5)


def test_what_waits_across_steps_counts_in_both() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.step(1, 100, 200)
    t.op("aten::mm", 0, 50)
    t.launch(0, 50, (150, 160))
    first, second = queue_depths(*t.linked())
    assert (first.mean_count, first.max_count, first.empty_frac) == pytest.approx((0.5, 1, 0.5))
    assert (second.mean_count, second.max_count, second.empty_frac) == pytest.approx((0.5, 1, 0.5))


def test_all_of_a_graph_launch_wait_from_its_one_call() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.op("graph", 0, 20)
    t.launch(0, 10, [(20, 30), (30, 40)], call="cudaGraphLaunch")
    (depth,) = queue_depths(*t.linked())
    assert depth.mean_count == pytest.approx((10 + 20) / 100)
    assert depth.max_count == 2


def test_without_launches_there_is_no_queue() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.kernel(10, 20)
    assert queue_depths(*t.linked()) == []
