"""A CPU with round figures: 2 cores, 100 GFLOP/s each, 1 MB of L2 each, 16 MB of L3; calibrated to
round values."""

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
_ALL = {
    "floor_us": 3.2,
    "first_us": 3.2,
    "fork_us": 2.4,
    "overhead_ratio": 1.0,
    "work_ratio": 1.0,
    "crowded_ratio": 0.07,
    "evicted_ratio": 0.07,
    "first_evicted_ratio": 0.1,
    "l2_gb_per_s": 100.0,
    "llc_gb_per_s": 55.0,
    "dram_gb_per_s": 17.0,
    "page_us": 1.0,
    "resident_frac": 0.1,
    "reuse_ratio": 0.45,
    "parallel_frac": 0.9,
    "spread_frac": 0.35,
    "core_gflop_per_s": 100.0,
    "bf16_ratio": 1.0,
    "bf16_half_ratio": 1.0,
    "bf16_us": 3.2,
    "bf16_mac_ns": 1.6,
    "vector_mac_ns": 0.07,
    "mac_ns": 0.7,
    "matrix_us": 0.14,
    "m_half": 2.2,
    "n_half": 2.2,
    "k_half": 2.2,
    "m_tile": 0.12,
    "n_tile": 0.12,
    "blocked_ratio": 1.7,
    "bag_ns": 2.2,
    "lookup_ns": 5.0,
    "miss_ns": 16.0,
    "near_ns": 5.0,
    "row_ratio": 1.0,
    "element_ns": 0.22,
    "tensor_us": 0.14,
    "chunk_ns": 1.0,
    "tail_ns": 0.45,
    "walk_ns": 7.0,
    "stream_ratio": 1.0,
    "passes_ratio": 4.5,
    "key_ns": 2.2,
    "compare_ns": 0.1,
    "radix_ns": 4.5,
    "each_us": 2.2,
    "bucket_us": 29.0,
    "rank_us": 22.0,
    "copies_ratio": 3.2,
}
_OWN = {
    "embedding": {"element_ns": 0.045},
    "optimizer": {"tensor_us": 5.5},
    "host": {"first_us": 1.4},
}
DEFAULTS = {
    family: {each.name: {**_ALL, **_OWN.get(family, {})}[each.name] for each in model.parameters}
    for family, model in CPU_FAMILIES.items()
    if family == model.family
}


def calibrated(**tables: Mapping[str, float]) -> Device:
    """The machine with these values over the defaults: `vector`, `vector__relu` of an op."""
    own = {name.replace("__", "."): dict(values) for name, values in tables.items()}
    merged = {k: {**DEFAULTS.get(k, {}), **own.get(k, {})} for k in {**DEFAULTS, **own}}
    return replace(_PLAIN, calibration=merged)


MACHINE = calibrated()
