"""A power limit over a step: the clock at which devices draw, on average, what they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, log

from perfmodel.base.units import human_us
from perfmodel.cost.gpu.power import LEAST_CLOCK, idle_w, working_w
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Device
from perfmodel.hardware.clock import at_clock
from perfmodel.hardware.originals import original
from perfmodel.prediction.types import Result

Noted = tuple[Result, list[str]]
"""A result, and what a user should know of it."""
_CLOSE = 1e-5
"""Of the logarithm of what is drawn, how near a search comes."""
_TRIES, _LEAST_SLOPE = 16, 0.1
"""Of a search: it ends at a clock where what is drawn jumps, too."""
NO_CHANGE_FRAC = 0.01
"""Of a step: what changes it by less is told with the reason."""


def active_frac(result: Result) -> float:
    """Share of a step that its devices work, the mean of the ranks that are shown."""
    active_us = sum(rank.gpu_active_us for rank in result.ranks) / len(result.ranks)
    return float(min(active_us / result.step_us, 1.0))


def unlimited(machine: Cluster) -> Cluster:
    """`machine` with devices that may draw what the boards draw that they were made from."""
    device = machine.node.device
    stock_w = original(device).tdp_w
    return (
        machine
        if device.tdp_w == stock_w
        else _with_device(machine, replace(device, tdp_w=stock_w))
    )


def _with_device(machine: Cluster, device: Device) -> Cluster:
    return replace(machine, node=replace(machine.node, device=device))


def within_limit(machine: Cluster, answer: Callable[[Cluster], Noted]) -> Noted:
    """What `answer` says of `machine` at the highest clock at which its GPUs draw no more than
    `tdp_w` on average over a step (drivers hold boards to it over many), and what a changed limit
    or clock does. Boards as they are sold draw what they may: there `answer` is as it is.

    Raises `UsageError` for a limit below what they draw at the least clock.
    """
    free_machine, device = unlimited(machine), machine.node.device
    found, stock = answer(free_machine), original(device)
    if device.target == "cpu" or (device.tdp_w, device.boost_mhz) == (stock.tdp_w, stock.boost_mhz):
        return found

    def at(clock: float) -> Noted:
        return answer(_with_device(machine, at_clock(free_machine.node.device, clock)))

    def drawn_w(clock: float, result: Result) -> float:
        return idle_w(device) + working_w(at_clock(device, clock)) * active_frac(result)

    free, remarks, limit = found[0], [], f"a limit of {device.tdp_w:,.0f} W"
    if device.boost_mhz != stock.boost_mhz:
        before, _ = at(stock.boost_mhz / device.boost_mhz)
        clocks = f"{device.boost_mhz:,.0f} in the place of {stock.boost_mhz:,.0f} MHz"
        remarks.append(f"{clocks}: {_change(before, free)}")
    usual_w = drawn_w(1.0, free)
    if usual_w > device.tdp_w:
        least, clock = LEAST_CLOCK * stock.boost_mhz / device.boost_mhz, 1.0
        slope, excess = 1.0, log(usual_w / device.tdp_w)
        for _ in range(_TRIES):  # by secants of logarithms
            if abs(excess) <= _CLOSE:
                break
            before_clock, before_excess = clock, excess
            clock = max(clock * exp(-excess / slope), least)
            found = at(clock)
            draws_w = drawn_w(clock, found[0])
            excess = log(draws_w / device.tdp_w)
            if clock == least and excess > _CLOSE:
                needs = f"{draws_w:,.0f} W are drawn at {LEAST_CLOCK:.0%} of its clock"
                raise UsageError(f"{device.name}: tdp_w {device.tdp_w:g}: {needs}")
            slope = max((excess - before_excess) / log(clock / before_clock), _LEAST_SLOPE)
        falls = f"{clock * device.boost_mhz:,.0f} of {device.boost_mhz:,.0f} MHz"
        remarks.append(f"{limit}: the clock falls to {falls}: {_change(free, found[0])}")
    elif device.tdp_w != stock.tdp_w:
        remarks.append(f"{limit} changes nothing: {usual_w:,.0f} W are drawn on average")
    return found[0], [*found[1], *remarks]


def _change(before: Result, after: Result) -> str:
    """What becomes of a step; of one that stays, what it waits for."""
    told = f"the step takes {human_us(before.step_us)} to {human_us(after.step_us)}"
    if abs(after.step_us / before.step_us - 1) > NO_CHANGE_FRAC:
        return told
    bounds = after.bound_by or {"": 0.0}
    waits_for = max(bounds, key=lambda name: bounds[name])
    if waits_for in ("", "compute"):
        return f"{told}: devices work {active_frac(after):.0%} of it, at the rate of their memory"
    return f"{told}: it waits for the {waits_for}"
