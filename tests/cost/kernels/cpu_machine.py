"""A CPU with round figures: 2 cores, 100 GFLOP/s each, 1 MB of L2 each, 16 MB of L3; calibrated to
the defaults of all parameters."""

from __future__ import annotations

from perfmodel.cost.contract import KERNELS
from perfmodel.hardware import Device

MACHINE = Device(
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
    calibration={key.split("/")[1]: {} for key in KERNELS if key.startswith("cpu/")},
)
ALONE = "host_wall_sync"
