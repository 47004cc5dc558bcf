"""Every idle microsecond of the device gets one cause: what its next operation was waiting for.

An idle interval ends where an operation starts; walking back along what decided that start says
what the device waited for. After the last operation of the trace it is `end_of_step`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.attribution.chains import Chains
from perfmodel.attribution.device import DeviceWork
from perfmodel.attribution.intervals import clip, gaps, union
from perfmodel.attribution.path import ROUNDING_US, Path, PlainPiece, Walker
from perfmodel.graph.kinds import Cause
from perfmodel.timeline.binding import Binding
from perfmodel.trace.columns import NONE, Floats, Ints, Mask


class Gaps(NamedTuple):
    """The idle intervals of a device within a step, and what ended each."""

    start_us: Floats
    end_us: Floats
    node: Ints
    """The operation that followed, or -1 after the last one."""
    resumed_us: Floats
    """When it began: the end of the gap, or (at the end of a step) later."""

    def only(self, chosen: Mask) -> Gaps:
        return Gaps(
            self.start_us[chosen], self.end_us[chosen], self.node[chosen], self.resumed_us[chosen]
        )


def idle_gaps(device: DeviceWork, low_us: float, high_us: float) -> Gaps:
    """When no operation of a device ran in [low_us, high_us]; none without operations."""
    if not len(device):
        return Gaps(np.zeros(0), np.zeros(0), device.first, np.zeros(0))
    first, last = device.within(low_us, high_us)
    start_us, end_us = device.timeline.start_us[first], device.timeline.end_us[last]
    begun, over = gaps(union(*clip(start_us, end_us, low_us, high_us)), low_us, high_us)
    following, resumed = device.next(over)
    return Gaps(begun, over, following, np.where(following >= 0, resumed, high_us))


def idle_by_cause(
    found: Gaps, walker: Walker, chains: Chains, binding: Binding
) -> dict[str, float]:
    """Microseconds of the gaps per cause, by name in lower case."""
    in_step = np.flatnonzero((found.node >= 0) & (found.resumed_us <= found.end_us))
    simple, total = chains.idle_us(
        binding, found.node[in_step], found.start_us[in_step], found.end_us[in_step]
    )
    rest = np.ones(len(found.node), bool)
    rest[in_step[simple]] = False
    walked = idle_pieces(found.only(rest), walker).by_cause()
    return {
        cause.name.lower(): time_us
        for cause in Cause
        if (time_us := float(total[cause]) + walked.get(cause.name.lower(), 0.0)) > ROUNDING_US
    }


def idle_pieces(found: Gaps, walker: Walker) -> Path:
    """The gaps piece by piece: what a figure shows, and what the sums are made of."""
    pieces: list[PlainPiece] = []
    for low, high, node, resumed in zip(*(column.tolist() for column in found), strict=True):
        if node == NONE:
            pieces.append((NONE, NONE, int(Cause.END_OF_STEP), low, high))
            continue
        walked = walker.walk(node, resumed, low).plain
        if resumed > high:
            walked = [(n, e, c, b, min(o, high)) for n, e, c, b, o in walked if b < high]
        pieces += walked
    return Path(pieces)
