"""A framework's runtime: as long as its calls, by how fast the host is."""

from __future__ import annotations

import pytest

from perfmodel.duration import durations_of, explanations_of
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows
from perfmodel.tiers.runtime import CALL_US, MEASURED_RATIO

ROWS = Rows.of([{"op": "function_call", "calls": calls} for calls in (1.0, 3.0)])


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-1"])
def test_it_goes_with_calls_and_the_hosts_speed(name: str) -> None:
    machine = node(name)
    found = durations_of(ROWS, machine)
    one_us = CALL_US * MEASURED_RATIO / machine.host.single_thread_ratio
    assert found.duration_us.tolist() == pytest.approx([one_us, 3 * one_us])
    assert (found.low_us < found.duration_us).all()
    assert (found.duration_us < found.high_us).all()


def test_it_explains_itself() -> None:
    machine = node("dgx-1")
    why = explanations_of(ROWS, machine)
    assert [each.duration_us for each in why] == durations_of(ROWS, machine).duration_us.tolist()
