"""How much of a step the device was busy, and with what: unions clipped to the step."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.attribution.device import DeviceWork
from perfmodel.attribution.intervals import union_length
from perfmodel.graph.kinds import Scope
from perfmodel.trace.columns import Mask


@dataclass(frozen=True)
class Accounting:
    """Device time within one interval. All but `kernel_sum_us` are unions of intervals."""

    step_us: float
    gpu_active_us: float
    gpu_idle_us: float
    compute_us: float
    comm_us: float
    memcpy_us: float
    exposed_comm_us: float
    overlapped_comm_us: float
    kernel_sum_us: float


def account(device: DeviceWork, low_us: float, high_us: float) -> Accounting:
    """Account for the operations of a device within [low_us, high_us].

    Exposed communication is the part of it during which nothing else runs on the device.
    """
    timeline = device.timeline
    first, last = device.within(low_us, high_us)
    scope = timeline.graph.nodes_.scope[last]
    start = timeline.start_us[first].clip(low_us, high_us)
    end = timeline.end_us[last].clip(low_us, high_us)

    def busy(chosen: Mask) -> float:
        return union_length(start[chosen], end[chosen])

    active = busy(scope >= 0)
    comm = busy(scope == Scope.COMM)
    exposed = active - busy(scope != Scope.COMM)
    has_device = bool(len(device))
    return Accounting(
        step_us=high_us - low_us,
        gpu_active_us=active,
        gpu_idle_us=high_us - low_us - active if has_device else 0.0,
        compute_us=busy(scope == Scope.COMPUTE),
        comm_us=comm,
        memcpy_us=busy(scope == Scope.MEMCPY),
        exposed_comm_us=exposed,
        overlapped_comm_us=comm - exposed,
        kernel_sum_us=float((end - start).sum()),
    )
