"""What a computation reads of a machine is recorded, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.hardware import cluster, kind_of
from perfmodel.hardware.reads import Read, read_of, reads_of, recorded


def test_a_figure_is_noted_when_it_is_read() -> None:
    machine, log = recorded(cluster("dgx-h100"))
    assert not log
    assert machine.node.device.hbm_gb_per_s == 3350.0
    assert log == {"device.hbm_gb_per_s"}
    (read,) = reads_of(cluster("dgx-h100"), log)
    assert (read.part, read.value, read.unit) == ("h100-sxm", 3350.0, "GB/s")
    assert read.source == machine.node.device.sources["hbm_gb_per_s"]


def test_two_records_both_note() -> None:
    once, outer = recorded(cluster("dgx-h100"))
    twice, inner = recorded(once)
    assert not outer
    _ = twice.node.host.single_thread_ratio
    assert outer == inner == {"host.single_thread_ratio"}


def test_a_recorded_part_is_still_one() -> None:
    machine, log = recorded(cluster("dgx-h100"))
    assert kind_of(machine.node.device) == "device"
    changed = replace(machine.node, gpus=4)
    assert changed.device is machine.node.device
    assert changed.gpus == 4
    assert "node.nics" in log


@pytest.mark.parametrize(
    ("source", "grounds"),
    [
        ("assumed: as the A100", "assumed"),
        ("not stated", "assumed"),
        ("data sheet, recalled", "recalled"),
        ("data sheet", "sourced"),
    ],
)
def test_what_a_figure_rests_on(source: str, grounds: str) -> None:
    assert Read("x", "device.l2_bytes", 1.0, "bytes", source).grounds == grounds


def test_units_are_those_of_the_names() -> None:
    node = cluster("dgx-h100").node
    assert read_of(node.device, "device", "hbm_gb_per_s").unit == "GB/s"
    assert read_of(node, "node", "gpus").unit == "count"
    assert read_of(node.device, "device", "target").unit == ""
