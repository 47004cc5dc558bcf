"""Ratios between devices, checked by hand."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware, ops
from perfmodel.errors import UsageError
from perfmodel.prediction.scheduled import host_ratio
from perfmodel.prediction.transferred import carried_frac, transfer_ratio

V100 = hardware.device("v100-sxm2-32gb")
A100 = hardware.device("a100-sxm-40gb")
H100 = hardware.device("h100-sxm")
DEVICES = st.sampled_from([it for it in hardware.devices() if it.target != "cpu"])
FAMILIES = st.sampled_from(ops.FAMILIES)
DTYPES = st.sampled_from((None, *ops.DTYPES))


@pytest.mark.parametrize(
    ("family", "dtype", "ratio"),
    [
        ("matmul", "fp32", (15.7 * 0.898) / (19.5 * 0.869)),
        ("matmul", None, (15.7 * 0.898) / (19.5 * 0.869)),
        ("matmul", "fp16", (125 * 0.898) / (312 * 0.869)),
        ("convolution", "tf32", (15.7 * 0.898) / (156 * 0.869)),
        ("attention", None, (125 * 0.898) / (312 * 0.869)),
        ("elementwise", "fp32", 900 / 1555),
        ("gemv", "fp16", 900 / 1555),
        ("other", None, 900 / 1555),
        ("communication", None, 150 / 300),
        ("memcpy_peer", None, 150 / 300),
        ("memcpy_host", None, 15.75 / 31.5),
    ],
)
def test_ratio_of_each_class(family: str, dtype: str | None, ratio: float) -> None:
    assert transfer_ratio([family], [dtype], V100, A100) == pytest.approx(ratio)


def test_floor_by_hand() -> None:
    source = replace(V100, kernel_floor_us=2.0)
    target = replace(source, kernel_floor_us=1.0, hbm_gb_per_s=source.hbm_gb_per_s * 4)
    measured = np.array([0.0, 1.0, 2.0, 10.0, 2002.0])
    ratio = transfer_ratio(["elementwise"] * 5, ["fp32"] * 5, source, target, duration_us=measured)
    # 10 us: 1 us of floor and (10 - 2) / 4 us above it.
    np.testing.assert_allclose(ratio * measured, [0.0, 0.5, 1.0, 3.0, 501.0])
    assert ratio[0] == 0.5


def test_no_link_means_pcie() -> None:
    card = hardware.device("v100-pcie-32gb")
    assert transfer_ratio(["communication"], [None], V100, card) == pytest.approx(150 / 15.75)


@given(device=DEVICES, family=FAMILIES, dtype=DTYPES, measured=st.floats(0, 1e6))
def test_same_device_is_exactly_one(
    device: hardware.Device, family: str, dtype: str | None, measured: float
) -> None:
    assert transfer_ratio([family], [dtype], device, device)[0] == 1.0
    assert transfer_ratio([family], [dtype], device, device, duration_us=[measured])[0] == 1.0


@given(a=DEVICES, b=DEVICES, c=DEVICES, family=FAMILIES, dtype=DTYPES, measured=st.floats(0, 1e6))
def test_there_and_back_and_on_the_way(
    a: hardware.Device,
    b: hardware.Device,
    c: hardware.Device,
    family: str,
    dtype: str | None,
    measured: float,
) -> None:
    def to(source: hardware.Device, target: hardware.Device, time_us: float) -> float:
        ratio = transfer_ratio([family], [dtype], source, target, duration_us=[time_us])
        return float(ratio[0] * time_us)

    assert to(b, a, to(a, b, measured)) == pytest.approx(measured)
    assert to(b, c, to(a, b, measured)) == pytest.approx(to(a, c, measured))


@given(
    a=DEVICES,
    b=DEVICES,
    family=FAMILIES,
    dtype=DTYPES,
    measured=st.lists(st.floats(0, 1e6), min_size=2),
)
def test_longer_stays_longer(
    a: hardware.Device, b: hardware.Device, family: str, dtype: str | None, measured: list[float]
) -> None:
    times_us = np.sort(np.array(measured))
    n = len(measured)
    ratio = transfer_ratio([family] * n, [dtype] * n, a, b, duration_us=times_us)
    assert np.all(ratio > 0)
    assert np.all(np.diff(ratio * times_us) >= -1e-6)


def test_between_a_gpu_and_a_cpu_is_refused_in_one_line() -> None:
    cpu = hardware.device("epyc-7742")
    for source, target in ((V100, cpu), (cpu, V100)):
        with pytest.raises(UsageError, match="one is a GPU, the other a CPU"):
            transfer_ratio(["matmul"], ["fp32"], source, target)


def test_between_cpus() -> None:
    slow, fast = hardware.device("xeon-4116"), hardware.device("epyc-7742")
    ratio = transfer_ratio(["matmul", "elementwise", "memcpy_host"], ["fp32"] * 3, slow, fast)
    np.testing.assert_allclose(ratio, [0.806 / 4.608, 115.2 / 204.8, 115.2 / 204.8])


def test_faster_host_takes_less_time() -> None:
    slow, fast = hardware.host("epyc-7742"), hardware.host("epyc-7543")
    assert host_ratio(slow, fast) == pytest.approx(1 / 1.3)
    assert host_ratio(slow, slow) == 1.0


def test_no_kernels() -> None:
    assert transfer_ratio([], [], V100, A100, duration_us=[]).shape == (0,)


@pytest.mark.parametrize(("source", "target"), [("h100", "mi300x"), ("mi300x", "h100")])
def test_same_model_on_two_makers(source: str, target: str) -> None:
    folder = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "traces/inference"
    if not folder.exists():
        pytest.skip(f"reference data not found: {folder}; set PERFMODEL_REFERENCE")

    def kernels(device: str) -> tuple[list[str], list[float]]:
        with gzip.open(folder / f"{device}_qwen1.5-0.5b.json.gz") as file:
            content = json.loads(file.read())
        found = [e for e in content["traceEvents"] if e.get("cat") in ("kernel", "gpu_memset")]
        return [e["name"] for e in found], [e["dur"] for e in found]

    names, measured = kernels(source)
    parts = {"h100": H100, "mi300x": hardware.device("mi300x")}
    ratio = transfer_ratio(
        ops.families_of_kernels(names),
        ops.dtypes_of_kernels(names),
        parts[source],
        parts[target],
        duration_us=measured,
    )
    predicted_us = float(ratio @ np.array(measured))
    assert predicted_us == pytest.approx(sum(kernels(target)[1]), rel=0.15)


def test_boards_of_one_chip_share_their_libraries_habits() -> None:
    by_name = hardware.device
    assert carried_frac(V100, V100) == 1.0
    assert carried_frac(by_name("mi25"), by_name("vega-fe")) == 1.0
    assert 0.5 < carried_frac(by_name("a100-pcie-40gb"), by_name("a100-pcie-80gb")) < 1.0
    assert carried_frac(V100, A100) == carried_frac(A100, by_name("mi300x")) == 0.5
