"""The catalogue: names, sources, and figures that agree with the published ones."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel import hardware
from perfmodel.errors import HardwareError

FIRST_NODES = ["dgx-1", "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "hgx-h200", "hgx-mi300x"]
ROW_OF_DEVICE = {
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


@pytest.mark.parametrize("name", hardware.names())
def test_every_part_loads_and_every_figure_has_a_source(name: str) -> None:
    part = hardware.load(name)
    assert part.name == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    for figure in hardware.figures(part):
        assert figure.value > 0
        assert not figure.source.startswith(("given in", "not stated")), figure
        assert not re.search(r"(^|\s)/\w", figure.source), "a path of some machine"


def test_kinds_and_nodes() -> None:
    assert set(FIRST_NODES) <= set(hardware.names("node"))
    assert set(hardware.names("device")).isdisjoint(hardware.names("node"))
    assert sorted(hardware.names()) == hardware.names()
    with pytest.raises(HardwareError, match=r"unknown kind 'gpu'; expected one of device, host"):
        hardware.names("gpu")


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
    with pytest.raises(HardwareError, match="epyc-7742 is a host; expected a node"):
        hardware.node("epyc-7742")


def test_import_is_light() -> None:
    code = (
        "import sys; from perfmodel import hardware, ops; hardware.load('dgx-h100'); "
        "print([m for m in ('numpy', 'pandas', 'matplotlib', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ROW_OF_DEVICE)
def test_figures_agree_with_the_published_ones(name: str) -> None:
    path = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "hardware/hardware.csv"
    if not path.exists():
        pytest.skip(f"reference data not found: {path}; set PERFMODEL_REFERENCE")
    with path.open(newline="") as file:
        rows = {(row["gpu"], row["form"]): row for row in csv.DictReader(file)}
    row, device = rows[ROW_OF_DEVICE[name]], hardware.device(name)
    for figure, column in COLUMN_OF_FIGURE.items():
        published = float(row[column] or 0)
        if published:
            assert getattr(device, figure) == pytest.approx(published, rel=1e-3), figure
