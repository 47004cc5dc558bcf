"""The three-region curve of Lin et al.: latency, a sigmoid of log bandwidth, full rate.

One curve per collective and machine, as its authors fitted it to PARAM runs; not continuous at its
knees and not monotone. To compare with; predictions use `perfmodel.network.durations`.

Source: Lin et al., HiPC 2022 and TPDS 2024, with the published implementation's constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.ops.spec import Floats

_TURNS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True)
class Curve:
    """The constants of one collective on one machine."""

    latency_log2_bytes: float
    """Up to here the call takes `overhead_us`."""
    full_log2_bytes: float
    """From here on it runs at `full_gb_per_s`."""
    full_gb_per_s: float
    """Bus bandwidth."""
    overhead_us: float
    height: float
    middle: float
    slope: float
    offset: float
    """Of the sigmoid of log10(bus bandwidth in GB/s) over log2(bytes)."""

    def duration_us(self, size_bytes: ArrayLike, op: str, ranks: int) -> Floats:
        """Microseconds of `op` among `ranks` ranks at `size_bytes`."""
        size = np.asarray(size_bytes, np.float64)
        power = np.log2(size)
        factor = _TURNS[op] * (ranks - 1) / ranks if op in _TURNS else 1.0
        exponent = self.height / (1.0 + np.exp(-self.slope * (power - self.middle))) + self.offset
        rising = size / 10.0**exponent * factor / 1e3
        full = size / self.full_gb_per_s * factor / 1e3 + self.overhead_us
        found = np.where(power <= self.full_log2_bytes, rising, full)
        return np.asarray(np.where(power <= self.latency_log2_bytes, self.overhead_us, found))


def effective_bytes(sends_bytes: ArrayLike) -> float:
    """Size of an uneven all-to-all whose rank i sends `sends_bytes[i]` to every other rank.

    The largest, over the ranks, of what it receives and what it sends ("max of max").
    """
    sends = np.asarray(sends_bytes, np.float64)
    received = sends.sum() - sends
    return float(np.maximum(received, sends * (len(sends) - 1)).max())
