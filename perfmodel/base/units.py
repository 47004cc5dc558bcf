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
UNITS = {name: name for name in ("us", "ns", "ms", "s", "years", "bytes", "bits")} | {
    "mib": "MiB",
    "gb": "GB",
    "gib": "GiB",
    "gb_per_s": "GB/s",
    "flop": "FLOP",
    "gflop_per_s": "GFLOP/s",
    "tflop_per_s": "TFLOP/s",
    "mhz": "MHz",
    "w": "W",
    "kwh": "kWh",
    "usd": "USD",
    "usd_per_hour": "USD/h",
    "usd_per_kwh": "USD/kWh",
    "iops": "1/s",
    "per_s": "1/s",
    "per_us": "1/us",
    "per_day": "1/day",
    "per_million_samples": "per million samples",
    "frac": "share",
    "pct": "%",
    "ratio": "ratio",
    "factor": "ratio",
}
"""How the name of a quantity may end, after an underscore or as a whole, and its unit in words."""


def unit_of(name: str) -> str | None:
    """The unit that a name ends in, the longest that fits; None for names of counts and texts.

    `us_per_event` is `us per event`.
    """
    words = name.split("_")
    ends = ("_".join(words[at:]) for at in range(len(words)))
    match = next((UNITS[end] for end in ends if end in UNITS), None)
    of, per, each = name.rpartition("_per_")
    if match is None and per and (unit := unit_of(of)):
        return f"{unit} per {each}"
    return match


def counted(number: int, thing: str) -> str:
    """`1 rank`, `4,087 events`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


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


def error_pct(predicted: float, measured: float | None) -> float | None:
    """Signed error in percent of the measured value; None without one."""
    return (predicted / measured - 1) * 100 if measured else None
