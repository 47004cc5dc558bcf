"""The catalogue: names, sources, and figures that agree with the published ones."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from perfmodel import hardware
from perfmodel.errors import HardwareError

MUST_HAVE = """
p4 p100-pcie-16gb titan-x-maxwell titan-x-pascal titan-xp gtx-1080-ti m40 v100-pcie-16gb
v100-sxm2-16gb v100-sxm2-32gb v100-sxm3-32gb v100-dgxs-32gb quadro-gv100 rtx-2080-ti t4 a10 a30 a40
a100-sxm-40gb a100-sxm-80gb a100-pcie-40gb a100-pcie-80gb a100-pg509-200 l4 l40 l40s h100-sxm
h100-pcie h100-nvl h200-sxm h200-nvl b200 b300 gb200 gb300 rtx-pro-6000 vega-fe mi25 mi100 mi210
mi250x mi300x mi325x mi355x epyc-7742 epyc-7543 xeon-4116 xeon-platinum-8380 grace generic-cpu
connectx-6 connectx-7 efa-v1 slingshot-11 bluefield-2 bluefield-3 u280 p4800x p5800x p3700 pm1743
dgx-1 dgx-2 dgx-a100-40gb dgx-a100-80gb zionex dgx-h100 hgx-h100 hgx-h200 hgx-b200 gb200-nvl72
hgx-mi300x p4d p5 gb200-nvl72-rack rtx-3090 rtx-4090 rtx-5090 rtx-6000-ada
h800-sxm h800-pcie a800-sxm-80gb a800-pcie-80gb h20 l20 l2 rtx-5080 rtx-5070-ti rtx-4080 rtx-4070
rtx-3080 rtx-3060 mi308x
"""
ROW_OF_DEVICE = {
    "p100-sxm2-16gb": ("P100", "SXM2"),
    "t4": ("T4", "PCIe"),
    "a10": ("A10", "PCIe"),
    "l4": ("L4", "PCIe"),
    "l40s": ("L40S", "PCIe"),
    "b200": ("B200", "SXM (HGX)"),
    "mi250x": ("MI250X", "OAM"),
    "v100-sxm2-32gb": ("V100", "SXM2"),
    "v100-pcie-16gb": ("V100", "PCIe"),
    "a100-sxm-40gb": ("A100-40GB", "SXM4"),
    "a100-sxm-80gb": ("A100-80GB", "SXM4"),
    "a100-pcie-40gb": ("A100-40GB", "PCIe"),
    "a100-pcie-80gb": ("A100-80GB", "PCIe"),
    "h100-sxm": ("H100-80GB", "SXM5"),
    "h100-pcie": ("H100-80GB", "PCIe"),
    "h200-sxm": ("H200-141GB", "SXM5"),
    "mi210": ("MI210", "PCIe/OAM"),
    "mi300x": ("MI300X", "OAM"),
}
DEVICES_OF_ROW = {"mi250x": 2}
"""The driver shows each of the two dies of this module as a device."""
COLUMN_OF_FIGURE = {
    "sm_count": "sms_or_cus",
    "boost_mhz": "boost_mhz",
    "fp32_tflop_per_s": "fp32_tflops",
    "tf32_tflop_per_s": "tf32_tflops",
    "fp16_tflop_per_s": "fp16_tflops",
    "bf16_tflop_per_s": "bf16_tflops",
    "fp8_tflop_per_s": "fp8_tflops",
    "int8_tflop_per_s": "int8_tops",
    "hbm_gb_per_s": "mem_bw_GBps",
    "link_gb_per_s": "gpu_link_bw_unidir_GBps",
    "tdp_w": "tdp_w",
}


def test_every_part_loads_and_every_figure_has_a_source() -> None:
    for part in hardware.find():
        assert hardware.load(part.name, hardware.kind_of(part)) == part
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", part.name)
        for figure in hardware.figures(part):
            assert figure.value > 0
            assert not figure.source.startswith(("given", "not stated")), (part.name, figure)
            assert not re.search(r"(^|\s)/\w", figure.source), "a path of some machine"


def test_every_device_says_what_kernel_models_need() -> None:
    for device in hardware.devices():
        assert {"architecture", "memory_kind"} <= set(device.sources), device
        assert (device.compute_capability is not None) == (device.target == "cuda"), device
        assert (device.shared_bytes_per_sm is None) == (device.target == "cpu"), device
        assert (device.max_threads_per_sm is None) == (device.target == "cpu"), device
        assert device.usual_node is None or hardware.node(device).gpus >= 1
        if device.compute_capability and float(device.compute_capability) >= 7.0:
            # sums in fp32: half rate
            half = ("l20", "l40", "a10g", "rtx-30", "rtx-40", "rtx-50")
            is_half = device.name.startswith(half)
            times = device.matrix_tflop_per_s("fp16") / device.fp32_tflop_per_s
            assert is_half or times > 3, device


def test_vector_peak_is_lanes_times_clock() -> None:
    for device in hardware.devices():
        lanes = {"cuda": (64, 128), "rocm": (64, 128), "cpu": (16, 32)}[device.target]
        clock = device.base_mhz if device.target == "cpu" else device.boost_mhz
        assert clock is not None
        per_clock = device.fp32_tflop_per_s * 1e6 / clock / device.sm_count / 2
        # 0.1: vectors of the H100 run at a higher clock than its products, whose clock is here.
        assert min(abs(per_clock / lane - 1) for lane in lanes) < 0.1, device


def test_kinds_and_names() -> None:
    assert set(MUST_HAVE.split()) <= set(hardware.names())
    assert set(hardware.names("device")).isdisjoint(hardware.names("node"))
    assert sorted(hardware.names()) == hardware.names()
    with pytest.raises(HardwareError, match=r"unknown kind 'gpu'; expected one of device, host"):
        hardware.names("gpu")


def test_find_by_words() -> None:
    assert [it.name for it in hardware.find("amd cdna3")] == ["mi300x", "mi308x", "mi325x"]
    assert [it.name for it in hardware.find("SXM6 ac")] == ["b300"]
    assert {hardware.kind_of(it) for it in hardware.find("epyc-7742")} == {"device", "host"}
    assert [it.name for it in hardware.find("gb200", "cluster")] == ["gb200-nvl72-rack"]
    assert hardware.find("no such thing") == []


def test_a_node_is_made_of_the_catalogues_parts() -> None:
    node = hardware.node("dgx-a100-40gb")
    assert node.device == hardware.device("a100-sxm-40gb")
    assert node.host == hardware.host("epyc-7742")
    assert (node.gpus, node.nics, node.peer_gb_per_s) == (8, 8, 300)


def test_a_device_stands_for_its_usual_node() -> None:
    node = hardware.node("v100-sxm2-16gb")
    assert node.name == "v100-sxm2-16gb"
    assert (node.gpus, node.host.name) == (8, "xeon-e5-2698-v4")
    assert node.device.hbm_bytes < 17e9
    plain = hardware.node("rtx-2080-ti")
    assert (plain.gpus, plain.link, plain.host.name) == (1, None, "generic-server")
    assert plain.peer_gb_per_s == plain.device.pcie_gb_per_s


def test_a_type_without_units_runs_on_wider_ones() -> None:
    v100, a100, mi210 = (hardware.device(n) for n in ("v100-sxm2-32gb", "a100-sxm-40gb", "mi210"))
    assert a100.matrix_tflop_per_s("tf32") == 156
    assert v100.matrix_tflop_per_s("tf32") == v100.fp32_tflop_per_s
    assert v100.matrix_tflop_per_s("bf16") == v100.fp32_tflop_per_s
    assert a100.matrix_tflop_per_s("fp8") == a100.bf16_tflop_per_s
    assert mi210.matrix_tflop_per_s("fp32") == mi210.fp32_matrix_tflop_per_s
    assert mi210.matrix_tflop_per_s(None) == mi210.matrix_tflop_per_s("fp32")


@pytest.mark.parametrize(
    ("name", "near"),
    [("h100-sxn", "h100-sxm"), ("dgx-a100", "dgx-a100-40gb, dgx-a100-80gb"), ("a100", "a100-pcie")],
)
def test_unknown_names_list_the_nearest(name: str, near: str) -> None:
    with pytest.raises(HardwareError, match=f"unknown hardware '{name}'; nearest: .*{near}"):
        hardware.load(name)


def test_wrong_kind() -> None:
    with pytest.raises(HardwareError, match="dgx-h100 is a node; expected a device"):
        hardware.device("dgx-h100")
    with pytest.raises(HardwareError, match="connectx-7 is a nic; expected a node"):
        hardware.node("connectx-7")


@pytest.mark.parametrize("name", ROW_OF_DEVICE)
def test_figures_agree_with_the_published_ones(name: str) -> None:
    path = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "hardware/hardware.csv"
    if not path.exists():
        pytest.skip(f"reference data not found: {path}; set PERFMODEL_REFERENCE")
    with path.open(newline="") as file:
        rows = {(row["gpu"], row["form"]): row for row in csv.DictReader(file)}
    row, device = rows[ROW_OF_DEVICE[name]], hardware.device(name)
    for figure, column in COLUMN_OF_FIGURE.items():
        shared = figure != "boost_mhz"
        published = float(row[column] or 0) / (DEVICES_OF_ROW.get(name, 1) if shared else 1)
        if published:
            assert getattr(device, figure) == pytest.approx(published, rel=1e-3), figure


def test_streams_reach_what_was_measured_else_a_usual_share() -> None:
    assert hardware.device("t4").stream_gb_per_s == pytest.approx(0.749 * 320)
    b200 = hardware.device("b200")
    assert b200.stream_gb_per_s == pytest.approx(0.85 * b200.hbm_gb_per_s)
