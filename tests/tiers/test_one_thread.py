"""Work of one thread: as long as measured, by how fast the host is."""

from __future__ import annotations

import pytest

from perfmodel.duration import durations_of, explanations_of
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows
from perfmodel.tiers.one_thread import MEASURED_RATIO

ROWS = Rows.of([{"op": "one_thread", "measured_us": taken} for taken in (100.0, 300.0)])


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-1"])
def test_it_goes_with_the_hosts_speed(name: str) -> None:
    machine = node(name)
    found = durations_of(ROWS, machine)
    slower = MEASURED_RATIO / machine.host.single_thread_ratio
    assert found.duration_us.tolist() == pytest.approx([100 * slower, 300 * slower])
    assert (found.low_us < found.duration_us).all()
    assert (found.duration_us < found.high_us).all()


def test_it_explains_itself() -> None:
    machine = node("dgx-1")
    why = explanations_of(ROWS, machine)
    taken = durations_of(ROWS, machine).duration_us
    assert [each.duration_us for each in why] == pytest.approx(taken.tolist(), rel=1e-9)
