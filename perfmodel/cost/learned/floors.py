"""What of a measured time is the host's, by the hosts that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.arrays import Floats, median
from perfmodel.cost.basis import OfDevice
from perfmodel.cost.gpu.heuristic import OF_UNKNOWN_HOST, Floor, off_by_both
from perfmodel.cost.learned.devices import Description, describe, distance, kinship
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original

_EXACT = _LEAST_US = 1e-3
_FEW_HOSTS = 3
_NORMAL_5_PCT = 1.645


@dataclass(frozen=True)
class KnownFloor:
    """Floor and offset of one op, dtype and timing, measured on the host of one device."""

    device: Description
    floor: Floor


def known_floors(floors: tuple[KnownFloor, ...], device: Device) -> Floats | None:
    """Floor and offset, each the usual one, the least and the most, `[2, 3]`: of the device's own
    host where it was measured; else the median floor, and of it the median share, of the hosts of
    devices like it, of all where there is none; and where 90 % of calls would lie, as they scatter
    on one host, and of hosts, if the two are independent. None where no host tells of it."""
    found: Floats | None = _known_floors(OfDevice((id(floors),), device, floors))
    return found


def _floors_on(asked: OfDevice) -> Floats | None:
    floors: tuple[KnownFloor, ...] = asked.by
    description = describe(original(asked.device))
    measured = [(each, distance(each.device, description)) for each in floors]
    measured = [(each, by) for each, by in measured if each.floor.is_measured or by < _EXACT]
    if not measured:
        return None
    known, away = [each for each, _ in measured], np.array([by for _, by in measured])
    hosts = [each.floor for each in known]
    floors_us = np.array([max(each.floor_us, _LEAST_US) for each in hosts])
    shares = np.array([each.offset_us for each in hosts]) / floors_us
    of_hosts = np.stack([floors_us, shares], axis=1)
    is_like = away <= away.min() if kinship(away.min()) > 0.0 else away < np.inf
    middle = np.cumprod([median(each) for each in of_hosts[is_like].T])
    is_own = away.min() < _EXACT and known[int(away.argmin())].floor.is_measured
    floor_factor, share_factor = np.ones(2) if is_own else factor_of_hosts(of_hosts)
    factor = np.array([floor_factor, off_by_both(floor_factor, share_factor)])
    scatter = np.array([each.scatter for each in hosts])[is_like]
    low, high = (np.array(median(each)) for each in scatter.T)
    ends = off_by_both(1.0 / factor, low), off_by_both(factor, high)
    return np.array([middle, *(middle * each for each in ends)]).T


_known_floors = lru_cache(maxsize=512)(_floors_on)


def factor_of_hosts(figures: Floats) -> Floats:
    """`[2]`: the factor around the median of hosts' `figures` `[hosts, 2]` within which 90 % of
    further hosts lie, if their logarithms are normal."""
    hosts = len(figures)
    if hosts < _FEW_HOSTS:
        return np.full(2, OF_UNKNOWN_HOST)
    spread = np.log(np.maximum(figures, _LEAST_US)).std(axis=0, ddof=1)
    return np.asarray(np.exp(_student_5_pct(hosts - 1) * np.sqrt(1.0 + 1.0 / hosts) * spread))


def _student_5_pct(freedom: int) -> float:
    """What Student's t exceeds in 5 % (Abramowitz and Stegun 26.7.5; 5 % low for 2 degrees)."""
    z = _NORMAL_5_PCT
    near = z + (z**3 + z) / (4 * freedom)
    return near + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
