"""What a computation reads of a machine is recorded, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from perfmodel.hardware import Device, cluster, kind_of
from perfmodel.hardware.reads import (
    FigureRead,
    cached_per_device,
    figure_read,
    figure_reads,
    with_read_log,
)


def test_a_figure_is_noted_when_it_is_read() -> None:
    machine, log = with_read_log(cluster("dgx-h100"))
    assert not log
    assert machine.node.device.hbm_gb_per_s == 3350.0
    assert log == {"device.hbm_gb_per_s"}
    (read,) = figure_reads(cluster("dgx-h100"), log)
    assert (read.part, read.value, read.unit) == ("h100-sxm", 3350.0, "GB/s")
    assert read.source == machine.node.device.sources["hbm_gb_per_s"]


def test_two_records_both_note() -> None:
    once, outer = with_read_log(cluster("dgx-h100"))
    twice, inner = with_read_log(once)
    assert not outer
    _ = twice.node.host.single_thread_ratio
    assert outer == inner == {"host.single_thread_ratio"}


def test_a_recorded_part_is_still_one() -> None:
    machine, log = with_read_log(cluster("dgx-h100"))
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
    assert FigureRead("x", "device.l2_bytes", 1.0, "bytes", source).grounds == grounds


def test_units_are_those_of_the_names() -> None:
    node = cluster("dgx-h100").node
    assert figure_read(node.device, "device", "hbm_gb_per_s").unit == "GB/s"
    assert figure_read(node, "node", "gpus").unit == "count"
    assert figure_read(node.device, "device", "target").unit == ""


@dataclass(frozen=True)
class _Key:
    device: Device
    times: int

    def on(self, device: Device) -> _Key:
        return replace(self, device=device)


def test_what_an_answer_read_is_noted_whenever_it_is_used_again() -> None:
    asked = []

    def make(key: _Key) -> float:
        asked.append(key.times)
        return key.times * key.device.l2_bytes

    known = cached_per_device(make, maxsize=4)
    plain = cluster("dgx-h100")
    for _ in range(2):
        machine, log = with_read_log(plain)
        assert known(_Key(machine.node.device, 3)) == 3 * plain.node.device.l2_bytes
        assert log == {"device.l2_bytes"}
    assert known(_Key(plain.node.device, 3)) == 3 * plain.node.device.l2_bytes
    assert known(_Key(replace(plain.node.device, l2_bytes=1), 3)) == 3
    assert asked == [3, 3], "once per device that differs"
