"""Time to move bytes: continuous and monotone in their number, with the L2 for what fits in it."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import (
    cache_bytes,
    hbm_bytes_per_us,
    l2_bytes_per_us,
    stream_bytes_per_us,
)
from perfmodel.ops.spec import Floats

_RESIDENT_UP_TO = 0.5
_GONE_FROM = 1.25
"""Working sets, as multiples of the cache: below the first all is found there on the next use,
above the second nothing is."""


def missed_share(working_set_bytes: Floats, device: Device) -> Floats:
    """Share of the bytes that the cache does not hold from their last use, 0 to 1."""
    fill = working_set_bytes / cache_bytes(device)
    return np.clip((fill - _RESIDENT_UP_TO) / (_GONE_FROM - _RESIDENT_UP_TO), 0.0, 1.0)


def bound_us(total_bytes: Floats, device: Device) -> Floats:
    """The least time in which `total_bytes` can move: at the memory's peak, or the L2's where
    they fit in the cache."""
    missed = missed_share(total_bytes, device)
    at_l2 = total_bytes / (2.0 * l2_bytes_per_us(device))
    return np.maximum(at_l2, missed * total_bytes / hbm_bytes_per_us(device))


def transfer_us(total_bytes: Floats, device: Device) -> Floats:
    """What moving `total_bytes` once usually takes, without a kernel's fixed cost."""
    missed = missed_share(total_bytes, device) * total_bytes
    return np.maximum(total_bytes / l2_bytes_per_us(device), missed / stream_bytes_per_us(device))
