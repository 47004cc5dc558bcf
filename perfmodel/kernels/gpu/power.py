"""Rates that a power limit leaves: small boards cannot hold their clock in long matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.hardware import Device
from perfmodel.ops.spec import Floats

_FP32_TFLOP_PER_S_PER_W = {
    "maxwell": 0.05,
    "pascal": 0.065,
    "volta": 0.054,
    "turing": 0.054,
    "ampere": 0.09,
    "ada": 0.2,
    "hopper": 0.2,
    "blackwell": 0.2,
    "cdna": 0.12,
    "cdna2": 0.15,
    "cdna3": 0.25,
    "cdna4": 0.3,
}
"""Long fp32 products per watt of the limit, by generation.

Pascal to Turing and CDNA from the best products in sitar-lab/NeuSight@6945927d (P4 4.6 TFLOP/s at
75 W, T4 3.6 at 70 W, V100 13.4 at 250 W); Ampere is a lower bound (17 at 250 W, not limited);
later ones are assumed from their process.
"""
_USUAL = 0.1


def sustained_flop_per_us(device: Device, dtypes: Sequence[str], peak: Floats) -> Floats:
    """`peak` `[n]` (FLOP per microsecond), or for fp32 what the power limit leaves of it."""
    per_w = _FP32_TFLOP_PER_S_PER_W.get(device.architecture or "", _USUAL)
    limit = per_w * device.tdp_w * 1e6
    is_fp32 = np.array([dtype == "fp32" for dtype in dtypes])
    return np.where(is_fp32, np.minimum(peak, limit), peak)
