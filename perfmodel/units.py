"""Units: every quantity's name ends in its unit, and conversions happen here.

Time is float64 microseconds relative to an int64 nanosecond origin: at epoch magnitude a float64
microsecond resolves a quarter of a microsecond only.
"""

from __future__ import annotations

US_PER_S = 1e6
US_PER_MS = 1e3
NS_PER_US = 1_000
BYTES_PER_GB = 1e9
"""GB here is 10**9 bytes, as in datasheets and nccl-tests."""


def transfer_us(size_bytes: float, rate_gb_per_s: float) -> float:
    """Microseconds to move `size_bytes` at `rate_gb_per_s` (10**9 bytes per second)."""
    return size_bytes / (rate_gb_per_s * BYTES_PER_GB) * US_PER_S


def human_us(value_us: float) -> str:
    """A duration for people: `870 ns`, `12.3 us`, `4.57 ms`, `1.20 s`."""
    size = abs(value_us)
    if size >= US_PER_S:
        return f"{value_us / US_PER_S:.2f} s"
    if size >= US_PER_MS:
        return f"{value_us / US_PER_MS:.2f} ms"
    if size >= 1 or value_us == 0:
        return f"{value_us:.1f} us"
    return f"{value_us * NS_PER_US:.0f} ns"
