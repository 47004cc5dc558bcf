"""Rates that a power limit leaves: small boards cannot hold their clock in long matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.hardware import Device
from perfmodel.ops.spec import Floats
from perfmodel.ops.storage import item_bytes

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


_NARROW_FLOP_PER_S_PER_W = {"ada": 0.58e12}
"""The same for 16-bit products, twice as much for 8-bit ones, where a limit has been seen:
ai-dynamo/aiconfigurator@095f58a51c, L40S at 350 W, 0.51 to 0.63 of its peak."""


def sustained_flop_per_us(device: Device, dtypes: Sequence[str], peak: Floats) -> Floats:
    """`peak` `[n]` (FLOP per microsecond), or what the power limit leaves of it."""
    architecture = device.architecture or ""
    limits = {"fp32": _FP32_TFLOP_PER_S_PER_W.get(architecture, _USUAL) * 1e12}
    narrow = _NARROW_FLOP_PER_S_PER_W.get(architecture)
    if narrow is not None:
        sizes = dict(zip(set(dtypes), item_bytes(list(set(dtypes))), strict=True))
        limits |= {
            dtype: narrow * 2.0 / max(size, 1.0) for dtype, size in sizes.items() if dtype != "fp32"
        }
    per_w = np.array([limits.get(dtype, np.inf) for dtype in dtypes])
    return np.minimum(peak, per_w * device.tdp_w * 1e-6)
