"""A CPU with round figures: 2 cores, 100 GFLOP/s each, 1 MB of L2 each, 16 MB of L3; calibrated to
the defaults of all parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.cost.models import CPU_FAMILIES
from perfmodel.hardware import Device

_PLAIN = Device(
    name="round-cpu",
    target="cpu",
    sm_count=2,
    boost_mhz=3000,
    tdp_w=50,
    hbm_bytes=16_000_000_000,
    hbm_gb_per_s=20,
    l2_bytes=2_000_000,
    llc_bytes=16_000_000,
    fp32_tflop_per_s=0.2,
    gemm_peak_frac=1.0,
    kernel_floor_us=1,
)
DEFAULTS = {
    model.family: {each.name: each.default_on(_PLAIN) for each in model.parameters}
    for model in CPU_FAMILIES.values()
}


def calibrated(**tables: Mapping[str, float]) -> Device:
    """The machine with these values over the defaults: `vector`, `vector__relu` of an op."""
    own = {name.replace("__", "."): dict(values) for name, values in tables.items()}
    merged = {k: {**DEFAULTS.get(k, {}), **own.get(k, {})} for k in {**DEFAULTS, **own}}
    return replace(_PLAIN, calibration=merged)


MACHINE = calibrated()
