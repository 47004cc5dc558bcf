"""Pauses of software: half a period, whatever the machine."""

from __future__ import annotations

import pytest

from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows

ROWS = Rows.of([{"op": "pause", "wait_us": 500.0}, {"op": "pause", "wait_us": 20.0}])


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-1"])
def test_a_pause_takes_what_it_says_between_nothing_and_a_period(name: str) -> None:
    found = durations_of(ROWS, node(name))
    assert found.duration_us.tolist() == [500.0, 20.0]
    assert found.low_us.tolist() == pytest.approx([50.0, 2.0])
    assert found.high_us.tolist() == pytest.approx([950.0, 38.0])


def test_it_explains_itself() -> None:
    why = explanations_of(ROWS, node("dgx-1"))
    assert [each.terms["wait_us"] for each in why] == [500.0, 20.0]
