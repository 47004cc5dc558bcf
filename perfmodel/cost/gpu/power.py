"""What a GPU draws: idle, and in addition while it works, at its clock."""

from __future__ import annotations

from perfmodel.cost.coefficients import coefficients
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original

_C = coefficients("gpu.power")
LEAST_CLOCK: float = _C.least_clock
IDLE_FRAC: float = _C.idle_frac


def idle_w(device: Device) -> float:
    """Watts of a GPU that does nothing."""
    return IDLE_FRAC * original(device).tdp_w


def working_w(device: Device) -> float:
    """Watts in addition of one that works all the time, at its clock: the board that it was made
    from draws as much as its limit allows at the clock that it is sold with."""
    stock = original(device)
    power: float = (device.boost_mhz / stock.boost_mhz) ** _C.clock_exponent
    return (1.0 - IDLE_FRAC) * stock.tdp_w * power
