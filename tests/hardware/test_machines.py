"""Nodes of devices, CPUs as devices, clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel import hardware
from perfmodel.errors import HardwareError
from perfmodel.hardware import catalogue


def test_a_cpu_is_a_device_and_a_host() -> None:
    cpu, host = hardware.device("epyc-7742"), hardware.host("epyc-7742")
    assert (cpu.target, cpu.sm_count, host.cores) == ("cpu", 64, 64)
    assert cpu.l2_bytes == 64 * 512 * 1024
    assert cpu.llc_bytes == 256 * 2**20
    assert cpu.fp32_tflop_per_s == 64 * 2250 * 32 / 1e6
    assert cpu.hbm_gb_per_s == host.dram_gb_per_s
    assert hardware.load("epyc-7742") == cpu
    assert hardware.load("epyc-7742", "host") == host
    assert catalogue.parts_named("epyc-7742") == [cpu, host]


@pytest.mark.parametrize(
    "device", [it for it in hardware.devices() if it.target == "cpu"], ids=lambda it: it.name
)
def test_every_cpu_agrees_with_its_host(device: hardware.Device) -> None:
    node = hardware.node(device.name)
    assert (node.gpus, node.sockets, node.device) == (1, 1, device)
    assert node.host.name == device.usual_host
    assert node.host.cores == device.sm_count
    assert node.host.dram_gb_per_s == device.hbm_gb_per_s
    assert node.host.boost_mhz == device.boost_mhz


def test_a_cpu_reaches_its_peers_and_host_through_its_memory() -> None:
    cpu = hardware.device("generic-cpu")
    assert cpu.pcie_gb_per_s is None
    assert cpu.host_gb_per_s == cpu.peer_gb_per_s == cpu.hbm_gb_per_s / 2
    gpu = hardware.device("t4")
    assert gpu.host_gb_per_s == gpu.peer_gb_per_s == gpu.pcie_gb_per_s


def test_types_without_units_on_old_devices() -> None:
    p4, cpu = hardware.device("p4"), hardware.device("xeon-platinum-8380")
    assert p4.matrix_tflop_per_s("fp16") == p4.fp32_tflop_per_s
    assert p4.matrix_tflop_per_s("int8") == 21.77
    assert p4.matrix_tflop_per_s("int64") == p4.fp32_tflop_per_s
    assert cpu.matrix_tflop_per_s("bf16") == cpu.fp32_tflop_per_s
    assert hardware.device("b200").matrix_tflop_per_s("fp4") == 9000
    assert hardware.device("h100-sxm").matrix_tflop_per_s("fp4") == 1979


def test_a_cluster_of_any_node_or_device(tmp_path: Path) -> None:
    assert hardware.cluster("dgx-h100", 4).gpus == 32
    assert hardware.cluster("dgx-h100").nodes == 1
    assert hardware.cluster("t4", 3).gpus == 3
    assert hardware.cluster("zionex-16").gpus == 128
    assert hardware.cluster("zionex-16", 2).gpus == 16
    path = tmp_path / "mine.toml"
    path.write_text('extends = "dgx-h100"\ngpus = 4\n')
    assert hardware.cluster(path, 2).gpus == 8
    for nodes in (0, -1, 1_000_000):
        with pytest.raises(HardwareError, match=f"nodes: expected a whole number.*got {nodes}"):
            hardware.cluster("dgx-h100", nodes)


def test_trays_of_a_rack_share_one_link_domain() -> None:
    assert hardware.node("gb200-nvl72").gpus == 4
    assert hardware.cluster("gb200-nvl72", 8).linked_gpus == 32
    assert hardware.cluster("gb200-nvl72-rack").linked_gpus == 72
    assert hardware.cluster("gb300-nvl72", 36).linked_gpus == 72
    assert hardware.cluster("dgx-h100", 4).linked_gpus == 8
