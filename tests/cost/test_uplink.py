"""Copies to and from the host, where several devices of a node share the way."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import hardware
from perfmodel.cost.durations import durations_of
from perfmodel.lowering.lower import lower
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.ops.rows import Rows

MIB = 2**20


def copied_us(machine: hardware.Node, ranks: float, pinned: float = 1.0) -> float:
    """64 MiB of bytes to the device."""
    row = {"op": "copy_h2d", "dtype": "int8", "elements": 64 * MIB, "pinned": pinned}
    return float(durations_of(Rows.of([{**row, "ranks": ranks}]), machine).duration_us[0])


def test_two_devices_behind_a_switch_get_half_the_rate_each() -> None:
    """DGX A100: 31.5 GB/s of PCI Express 4.0 x16, of which 0.82 is reached, by pairs."""
    machine = hardware.node("dgx-a100-80gb")
    alone, all_at_once = copied_us(machine, 1), copied_us(machine, 8)
    rate = 64 * MIB / all_at_once / 1e3
    assert rate == pytest.approx(0.82 * machine.device.host_gb_per_s / 2, rel=0.01)
    assert all_at_once == pytest.approx(2 * alone, rel=0.01)
    assert copied_us(machine, 2) == pytest.approx(all_at_once)


def test_a_device_with_its_own_way_shares_nothing() -> None:
    machine = hardware.node("dgx-h100")
    assert copied_us(machine, 8) == pytest.approx(copied_us(machine, 1))


def test_the_driver_s_buffer_can_be_slower_than_the_shared_way() -> None:
    machine = hardware.node("dgx-a100-80gb")
    assert copied_us(machine, 8, pinned=0.0) == pytest.approx(copied_us(machine, 1, pinned=0.0))


@pytest.mark.parametrize("ranks", [1, 16])
def test_all_ranks_of_a_job_copy_at_once(ranks: int) -> None:
    host, there = Tensor((8, 4), "fp32", device="cpu"), Tensor((8, 4), "fp32", device="cuda:0")
    graph = OpGraph((Op("aten::copy_", (there, host, True)),), rank=0, world_size=ranks)
    assert np.all(lower(graph, "cuda").rows.dims["ranks"] == ranks)
