"""Names that drivers report, against the catalogue."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from perfmodel import hardware
from perfmodel.errors import HardwareError
from perfmodel.hardware import catalogue

GIB = 2**30


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-PG509-200", "a100-pg509-200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("Tesla V100-DGXS-32GB", "v100-dgxs-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("tesla v100-sxm2-32gb", "v100-sxm2-32gb"),
        ("V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("H100 80GB", "h100-sxm"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA TITAN Xp", "titan-xp"),
        ("NVIDIA TITAN X (Pascal)", "titan-x-pascal"),
        ("GeForce GTX TITAN X", "titan-x-maxwell"),
        ("NVIDIA A100-SXM4-40GB (400W)", "a100-sxm-40gb"),
        ("AMD EPYC 7742 64-Core Processor", "epyc-7742"),
        ("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", "xeon-platinum-8380"),
        ("Intel(R) Xeon(R) Silver 4116 CPU @ 2.10GHz", "xeon-4116"),
        ("NVIDIA A100 SXM4 80 GB", "a100-sxm-80gb"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H800 PCIe", "h800-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
        ("NVIDIA A800 80GB PCIe", "a800-pcie-80gb"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA L20", "l20"),
        ("NVIDIA L2", "l2"),
        ("NVIDIA GeForce RTX 5080", "rtx-5080"),
        ("NVIDIA GeForce RTX 5070 Ti", "rtx-5070-ti"),
        ("NVIDIA GeForce RTX 4080", "rtx-4080"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("AMD Instinct MI308X", "mi308x"),
    ],
)
def test_names_of_drivers(driver_name: str, name: str) -> None:
    assert hardware.from_driver_name(driver_name).name == name
    assert hardware.device(driver_name).name == name


@pytest.mark.parametrize(("gib", "name"), [(16, "v100-sxm2-16gb"), (32, "v100-sxm2-32gb")])
def test_memory_decides_between_variants(gib: int, name: str) -> None:
    reported = int(gib * GIB * 0.985)
    assert hardware.from_driver_name("Tesla V100-SXM2", reported).name == name


def test_names_that_do_not_decide() -> None:
    with pytest.raises(HardwareError, match=r"may be v100-sxm2-16gb .*, v100-.*: say which"):
        hardware.from_driver_name("Tesla V100-SXM2")
    with pytest.raises(HardwareError, match=r"with 5 GB is none of h100-sxm \(85 GB\)"):
        hardware.from_driver_name("NVIDIA H100 80GB HBM3", 5_000_000_000)
    with pytest.raises(HardwareError, match=r"unknown hardware 'NVIDIA H900'; nearest: .*h100-sxm"):
        hardware.from_driver_name("NVIDIA H900")
    with pytest.raises(HardwareError, match="unknown hardware ''"):
        hardware.from_driver_name("")


COLUMNS_OF_DEVICES = ("device", "gpu", "accelerator")
FOLDERS_WITH_DEVICES = ("kernels", "kernels_lowprec", "collectives", "lin2022", "dlrm", "embedding")
SAYS_NO_SINGLE_DEVICE = re.compile(
    r"not stated|not in excerpt|class|power-limited|switch|/|DGX|per script|DGX-1|AWS|notebook"
    r"|TPU|^CPU|overall|^(NVIDIA )?([AVHP]100|A100-SXM4|[AV]100-\d\dGB|A100 \(.*\))$",
    re.IGNORECASE,
)
"""Labels of a family without its form, a system, or nothing: refused, but only in one line."""


def _devices_of(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path, columns=["device"]) if _has_device(path) else None
        elif path.name.endswith((".csv", ".csv.gz")):
            frame = pd.read_csv(path, usecols=lambda name: name in COLUMNS_OF_DEVICES)
        else:
            continue
        if frame is not None:
            found |= {str(each) for column in frame for each in frame[column].dropna().unique()}
    return found


def _has_device(path: Path) -> bool:
    parquet = pytest.importorskip("pyarrow.parquet")
    return "device" in parquet.read_schema(path).names


@pytest.mark.parametrize("folder", FOLDERS_WITH_DEVICES)
def test_every_device_of_the_shared_data(reference: Path, folder: str) -> None:
    names = _devices_of(reference / folder)
    assert names
    for name in names:
        if SAYS_NO_SINGLE_DEVICE.search(name):
            with contextlib.suppress(HardwareError):
                hardware.from_driver_name(name)
        else:
            assert hardware.from_driver_name(name).name in hardware.names("device")


def test_every_device_of_the_shared_traces() -> None:
    folder = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "traces"
    if not folder.exists():
        pytest.skip(f"reference data not found: {folder}; set PERFMODEL_REFERENCE")
    seen = set()
    for path in sorted(folder.rglob("*.json.gz")):
        with gzip.open(path, "rt") as file:
            text = file.read()
        start = text.find('"deviceProperties"')
        if start < 0:
            continue
        listed, _ = json.JSONDecoder().raw_decode(text, text.index("[", start))
        seen |= {(each["name"], each["totalGlobalMem"], each["numSms"]) for each in listed}
    assert len({name for name, *_ in seen}) >= 8
    for name, memory_bytes, sm_count in seen:
        device = hardware.from_driver_name(name, memory_bytes)
        assert device.sm_count == sm_count
        assert device.hbm_bytes == pytest.approx(memory_bytes, rel=0.01)


def test_reading_texts_first_leaves_no_device_out() -> None:
    every = hardware.devices()
    for device in every:
        for name in (device.name, *device.aliases):
            for memory_bytes in (None, device.hbm_bytes):
                wanted = _answer(name, memory_bytes)
                assert wanted == _answer_of_all(name, memory_bytes, every), name


def _answer(name: str, memory_bytes: int | None) -> str:
    try:
        return hardware.from_driver_name(name, memory_bytes).name
    except HardwareError as error:
        return str(error)


def _answer_of_all(name: str, memory_bytes: int | None, every: list[hardware.Device]) -> str:
    with mock.patch.object(catalogue, "_devices_that_mention", return_value=every):
        return _answer(name, memory_bytes)
