"""What a collective takes from kernels beside it, and what several leave one another."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.cost.collectives.learned import (
    DeviceShares,
    device_shares_of_rows,
)
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows


def _taken(machine: str, op: str, size_bytes: float, us: float, ranks: int = 8) -> DeviceShares:
    rows = Rows.of([{"op": op, "size_bytes": size_bytes, "ranks": ranks}])
    return device_shares_of_rows(rows, node(machine), np.array([us]))


@pytest.mark.parametrize(
    ("machine", "blocks", "sms"), [("dgx-1", 12, 80), ("dgx-a100-80gb", 24, 108)]
)
def test_two_thread_blocks_per_link(machine: str, blocks: int, sms: int) -> None:
    found = _taken(machine, "all_reduce", 1e8, 1000)
    assert found.sm_frac[0] == pytest.approx(blocks / sms)
    assert found.held_frac[0] == found.sm_frac[0]


def test_a_small_message_takes_few_blocks() -> None:
    assert _taken("dgx-1", "all_reduce", 1000, 10).sm_frac[0] == pytest.approx(1 / 80)


def test_of_an_exchange_only_who_is_late_is_waited_for() -> None:
    found = _taken("dgx-1", "all_to_all", 1e8, 1000)
    assert found.held_frac[0] == pytest.approx(found.sm_frac[0] / 7)


def test_a_ring_moves_three_bytes_in_memory_per_byte_on_the_links() -> None:
    """175 MB on the links in 1 ms are 525 GB/s of memory; an A100's reaches 0.827 of 2,039."""
    found = _taken("dgx-a100-80gb", "all_reduce", 1e8, 1000)
    assert found.hbm_frac[0] == pytest.approx(525 / (0.827 * 2039), rel=0.01)
    assert found.delay_us[0] == pytest.approx(175 * 0.045)


def test_where_the_switch_adds_up_each_byte_passes_once() -> None:
    found = _taken("dgx-h100", "all_reduce", 1e8, 1000)
    assert found.hbm_frac[0] == pytest.approx(87.5 * 3 / (0.876 * 3350), rel=0.01)
