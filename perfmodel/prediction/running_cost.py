"""A machine that works: what its parts draw and cost, per hour and per million samples, and which
costs least; and a power limit over a step: the clock at which devices draw, on average, what they
may.

A part draws `idle + (1 - idle) x activity` of its peak (Source: Fan, Weber and Barroso, Power
provisioning for a warehouse-sized computer, ISCA 2007: linear in utilisation); what a whole node
draws at most, where it is known, scales all parts together, so fans and losses follow the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, inf, isfinite, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import US_PER_S, human_us
from perfmodel.cost.gpu import rates
from perfmodel.errors import DoesNotFit, PerfmodelError, UsageError
from perfmodel.hardware import Cluster, Device, Node, Part, load
from perfmodel.hardware.catalogue import original
from perfmodel.hardware.settings import at_clock
from perfmodel.ops.families import COMMUNICATION
from perfmodel.prediction.intervals import ratio_interval
from perfmodel.prediction.types import Prediction, Result

COSTS = ("power_w", "kwh_per_million_samples", "usd_per_million_samples")
"""What JSON has of what a design costs; of a prediction, per million of what it says."""
BUSY_HOST_FRAC = 0.5
"""Assumed: of a host's cores, at work while its devices are."""
IDLE_FRAC = {"device": rates.IDLE_FRAC, "host": 0.4, "memory": 0.5, "nic": 0.8, "storage": 0.4}
"""Of its peak. Source: assumed: GPUs report 50 to 70 of 400 to 700 W; servers idle at a third to a
half of their peak; adapters and drives hardly rest."""
UNKNOWN_W = {"host": 200.0, "nic": 20.0, "storage": 15.0}
"""Assumed where a part's peak is not in its file."""
REST_FRAC = 0.32
"""Assumed: what boards, fans and conversion draw beyond the parts where the node's power is not
known: the mean of the catalogue's eight whole machines that say (0.09 to 0.54)."""
MEMORY_W_PER_GB, MEMORY_USD_PER_GB = 0.375, 4.0
"""3 W per 8 GB of DDR4 (Crucial, recalled). Assumed: about what registered DDR4 cost in 2020-23."""
YEARS, FACILITY_RATIO, USD_PER_KWH = 4.0, 1.1, 0.08
"""Over which a purchase is spread, and how many times the machine's energy a building takes.
Assumed: the usual life of servers in books of cloud companies; a modern data centre's PUE; a kWh is
about the US industrial average of 2023 (EIA), recalled. The machine does nothing else."""
HOURS_PER_YEAR = 8_766.0
SECONDS_PER_HOUR = 3_600.0
J_PER_KWH = 3.6e6
MILLION = 1e6
Number = float | NDArray[np.float64]


@dataclass(frozen=True)
class Prices:
    """What a user says of money: `usd_per_hour` rents one node, electricity included; else it is
    bought, or rented, at the catalogue's price (of another, `price_usd` of a node). Raises
    `UsageError` for what no price can be, and for both together."""

    usd_per_hour: float | None = None
    usd_per_kwh: float | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(f"prices: {part.name} of {value:g}: expected 0 or more")
        if None not in (self.usd_per_hour, self.usd_per_kwh):
            raise UsageError("prices: usd_per_kwh beside usd_per_hour: a rent includes it")


@dataclass(frozen=True)
class Activity:
    """Shares of the time (0 to 1) that devices, hosts' cores, adapters and drives work."""

    device_frac: Number = 1.0
    host_frac: Number = 0.5
    nic_frac: Number = 0.0
    storage_frac: Number = 0.0

    def __post_init__(self) -> None:
        for part in fields(self):
            value = np.asarray(getattr(self, part.name), np.float64)
            if not ((value >= 0) & (value <= 1 + 1e-9)).all():
                raise UsageError(f"activity: {part.name} of {value.max():g}: expected 0 to 1")


@dataclass(frozen=True)
class OperatingCosts:
    """What running a machine takes, before it is known how busy it is."""

    idle_w: float
    busy_w: Mapping[str, float]
    """By share of `Activity`, what its parts draw in addition where they always work."""
    held_usd_per_hour: float | None
    """The rent, or the purchase spread over its years; None where nobody knows a price."""
    usd_per_kwh: float
    """What energy costs beside that: 0 of a rent, which includes it."""
    working_limit_w: float = inf
    """What devices may draw in addition to being idle."""
    unpriced: tuple[str, ...] = ()
    """For want of whose price there is no rent or purchase: `host generic-server`."""

    def power_w(self, activity: Activity) -> Number:
        """What all nodes draw; as many values as `activity` has."""
        busy = {name: watts * getattr(activity, name) for name, watts in self.busy_w.items()}
        devices_w = np.minimum(busy.get("device_frac", 0.0), self.working_limit_w)
        busy["device_frac"] = devices_w if devices_w.ndim else float(devices_w)
        return sum(busy.values(), self.idle_w)

    def economics(self, samples_per_s: Number, activity: Activity | None = None) -> Economics:
        """At a rate of samples of the whole cluster; `UsageError` unless it is above 0."""
        if not (np.asarray(samples_per_s) > 0).all():
            raise UsageError(f"economics: {np.min(samples_per_s):g} samples per second")
        power_w, held_usd = self.power_w(activity or Activity()), self.held_usd_per_hour
        energy_usd = power_w / 1e3 * FACILITY_RATIO * self.usd_per_kwh
        usd_per_hour = None if held_usd is None else held_usd + energy_usd
        return Economics(samples_per_s, power_w, usd_per_hour)


@dataclass(frozen=True)
class Economics:
    """Power, energy and money of a machine at a rate of samples; arrays where rates are.

    Energy is of the machine itself, without its building. Money is None where a part has no price.
    """

    samples_per_s: Number
    power_w: Number
    usd_per_hour: Number | None

    @property
    def energy_j_per_sample(self) -> Number:
        return self.power_w / self.samples_per_s

    @property
    def kwh_per_million_samples(self) -> Number:
        return self.energy_j_per_sample * MILLION / J_PER_KWH

    @property
    def usd_per_million_samples(self) -> Number | None:
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / SECONDS_PER_HOUR / self.samples_per_s * MILLION


class _Part(NamedTuple):
    """Equal parts of a node: which, how many, and what one of them draws and costs."""

    kind: str
    name: str
    part_count: float
    peak_w: float
    price_usd: float | None


def operating_costs(machine: Cluster, prices: Prices | None = None) -> OperatingCosts:
    """What `machine` draws and costs, from its parts, its nodes and what a user says of prices."""
    node, said, share = machine.node, prices or Prices(), 1.0
    own_names = {each.name.partition(" (")[0] for each in (node, node.device)}  # without settings
    if len(own_names) == 1 and node.device.usual_node is not None:
        # Named by its device alone: its share of the node that this usually sits in.
        whole = load(node.device.usual_node, "node")
        share = min(node.gpus / whole.gpus, 1.0) if isinstance(whole, Node) else 1.0
    parts, scale = _parts(node, share), 1 + REST_FRAC
    if node.power_w is not None:
        scale = node.power_w * share / sum(part.part_count * part.peak_w for part in parts)
    idle_w, busy_w = 0.0, dict[str, float]()
    for part in parts:
        peak_w = part.part_count * part.peak_w * scale * machine.nodes
        busy, idle = f"{'host' if part.kind == 'memory' else part.kind}_frac", IDLE_FRAC[part.kind]
        idle_w += peak_w * idle
        busy_w[busy] = busy_w.get(busy, 0.0) + peak_w * (1 - idle)
    limit_w, stock = inf, original(node.device)
    if node.device.target != "cpu" and node.device != stock:
        of_one = busy_w["device_frac"] / rates.working_w(stock)
        busy_w["device_frac"] = of_one * rates.working_w(node.device)
        limit_w = of_one * max(node.device.tdp_w - rates.idle_w(stock), 0.0)
    rent = said.usd_per_hour
    if rent is None and node.price_usd is None and node.price_usd_per_hour is not None:
        rent = node.price_usd_per_hour * share
    held, usd_per_kwh, unpriced = rent, 0.0, list[str]()
    if rent is None:  # bought: the node, else its parts, without boards, case and power supplies
        price_usd = sum(part.part_count * (part.price_usd or 0.0) for part in parts)
        if node.price_usd is not None:
            price_usd = node.price_usd * share
        else:
            unpriced = [f"{each.kind} {each.name}" for each in parts if each.price_usd is None]
        held = None if unpriced else price_usd / (YEARS * HOURS_PER_YEAR)
        usd_per_kwh = USD_PER_KWH if said.usd_per_kwh is None else said.usd_per_kwh
    return OperatingCosts(
        idle_w,
        busy_w,
        held_usd_per_hour=None if held is None else held * machine.nodes,
        usd_per_kwh=usd_per_kwh,
        working_limit_w=limit_w,
        unpriced=tuple(unpriced),
    )


def _parts(node: Node, share: float) -> list[_Part]:
    """The parts of a node that have a price or draw power, of which `share` is in use."""
    held: list[tuple[str, Part | None, float]] = [("device", node.device, node.gpus)]
    if node.device.target != "cpu":
        held.append(("host", node.host, node.sockets * share))
    held.append(("nic", node.nic, (node.nics or 0) * share))
    held.append(("storage", node.storage, (node.drives or 1) * share))
    gb = (node.host_memory_bytes or 0) / 1e9 * share
    parts = [_Part("memory", "", gb, MEMORY_W_PER_GB, MEMORY_USD_PER_GB)] if gb else []
    for kind, part, count in held:
        if part is None or not count:
            continue
        sold = original(part) if isinstance(part, Device) and part.target != "cpu" else part
        peak_w = getattr(sold, "tdp_w", None)
        peak_w = UNKNOWN_W[kind] if peak_w is None else peak_w
        usd = getattr(part, "price_usd", None)
        parts.append(_Part(kind, part.name.partition(" (")[0], count, peak_w, usd))
    return parts


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


def activity_of(result: Result, machine: Cluster) -> Activity:
    """Shares of the period that devices (by the ranks that are shown), hosts, adapters and drives
    (by the slowest) work."""
    step_us = result.step_us
    busy = {row["family"]: min(row["time_us"] / step_us, 1.0) for row in result.families}
    return Activity(
        device_frac=1.0 if machine.node.device.target == "cpu" else active_frac(result),
        host_frac=max(BUSY_HOST_FRAC, busy.get("host_memory", 0.0)),
        nic_frac=busy.get(COMMUNICATION, 0.0) if machine.nodes > 1 else 0.0,
        storage_frac=busy.get("storage", 0.0),
    )


def copies_of(ranks: Number, devices: int) -> Number:
    """How many jobs of `ranks` so many devices run at once; of one that takes more, their share."""
    return np.maximum(devices // ranks, np.minimum(devices / ranks, 1.0))


def billed(source: Mapping[str, Any], results: Sequence[Result]) -> list[Result]:
    """`results` of a prediction of `source` with their `cost`: power, energy and money of each
    machine, per million samples of a workload, or batches of all else, at the catalogue's prices;
    and `over_best`, how many times the money of the cheapest (of none with a price, its step), with
    a 90 % interval. A machine runs as many copies of a trace as it has devices for."""
    costs = [_bill(source, result) for result in results]
    known = [(result, own) for result, own in zip(results, costs, strict=True) if own]
    sizes = [own["usd_per_million"] for _, own in known]
    sizes = sizes if any(sizes) else [result.step_us for result, _ in known]
    best = min(filter(None, sizes), default=0.0)
    for size, (result, own) in zip(sizes, known, strict=True):
        first = known[sizes.index(best)][0]
        over = size / best if size else None
        ends = ratio_interval(result, first) if over and result is not first else None
        steps = (over or 0.0) * first.step_us / result.step_us
        between = [end * steps for end in ends or ()]
        own |= {"over_best": over, "over_best_interval": between or None}
    return [replace(result, cost=own) for result, own in zip(results, costs, strict=True)]


def _bill(source: Mapping[str, Any], result: Result) -> dict[str, Any] | None:
    """What its machine costs; None of a trace that stays where it was recorded."""
    moved = getattr(result.explainer, "moved", None)
    machine = getattr(result.explainer, "machine", None) if moved is None else moved.target
    if machine is None:
        return None
    samples = source["batch"] if "workload" in source else None  # of all ranks, which fill it
    ranks = machine.gpus if samples else source.get("world_size", len(source["ranks"]))
    copies = float(copies_of(ranks, machine.gpus))
    rate = copies * (samples or 1) * US_PER_S / result.step_us
    costs = operating_costs(machine)
    bill = costs.economics(rate, activity_of(result, machine))
    per = {"per": "samples" if samples else "batches", "copies": copies, "rate_per_s": rate}
    told: dict[str, Any] = per | {"unpriced": [*costs.unpriced]}
    return told | {name.removesuffix("_samples"): getattr(bill, name) for name in COSTS}


def unlimited(machine: Cluster) -> Cluster:
    """`machine` with devices that may draw what the boards draw that they were made from."""
    device, stock_w = machine.node.device, original(machine.node.device).tdp_w
    is_stock = device.tdp_w == stock_w
    return machine if is_stock else _with_device(machine, replace(device, tdp_w=stock_w))


def _with_device(machine: Cluster, device: Device) -> Cluster:
    return replace(machine, node=replace(machine.node, device=device))


def within_limit(machine: Cluster, answer: Callable[[Cluster], Result]) -> Result:
    """What `answer` says of `machine` at the highest clock at which its GPUs draw no more than
    `tdp_w` on average over a step (drivers hold boards to it over many), and what a changed limit
    or clock does. Boards as they are sold draw what they may: there `answer` is as it is.

    Raises `UsageError` for a limit below what they draw at the least clock.
    """
    free_machine, device = unlimited(machine), machine.node.device
    found, stock = answer(free_machine), original(device)
    if device.target == "cpu" or (device.tdp_w, device.boost_mhz) == (stock.tdp_w, stock.boost_mhz):
        return found

    def at(clock: float) -> Result:
        return answer(_with_device(machine, at_clock(free_machine.node.device, clock)))

    def drawn_w(clock: float, result: Result) -> float:
        return rates.idle_w(device) + rates.working_w(at_clock(device, clock)) * active_frac(result)

    free, remarks, limit = found, [], f"a limit of {device.tdp_w:,.0f} W"
    if device.boost_mhz != stock.boost_mhz:
        before = at(stock.boost_mhz / device.boost_mhz)
        clocks = f"{device.boost_mhz:,.0f} in the place of {stock.boost_mhz:,.0f} MHz"
        remarks.append(f"{clocks}: {_change(before, free)}")
    usual_w = drawn_w(1.0, free)
    if usual_w > device.tdp_w:
        least, clock = rates.LEAST_CLOCK * stock.boost_mhz / device.boost_mhz, 1.0
        slope, excess = 1.0, log(usual_w / device.tdp_w)
        for _ in range(_TRIES):  # by secants of logarithms
            if abs(excess) <= _CLOSE:
                break
            before_clock, before_excess = clock, excess
            clock = max(clock * exp(-excess / slope), least)
            found = at(clock)
            excess = log((draws_w := drawn_w(clock, found)) / device.tdp_w)
            if clock == least and excess > _CLOSE:
                needs = f"{draws_w:,.0f} W drawn at {100 * rates.LEAST_CLOCK:.0f} % of its clock"
                raise UsageError(f"{device.name}: tdp_w {device.tdp_w:g}: {needs}")
            slope = max((excess - before_excess) / log(clock / before_clock), _LEAST_SLOPE)
        falls = f"{clock * device.boost_mhz:,.0f} of {device.boost_mhz:,.0f} MHz"
        remarks.append(f"{limit}: the clock falls to {falls}: {_change(free, found)}")
    elif device.tdp_w != stock.tdp_w:
        remarks.append(f"{limit} changes nothing: {usual_w:,.0f} W are drawn on average")
    return replace(found, notes=(*found.notes, *remarks))


def _change(before: Result, after: Result) -> str:
    """What becomes of a step; of one that stays, what it waits for."""
    told = f"the step takes {human_us(before.step_us)} to {human_us(after.step_us)}"
    if abs(after.step_us / before.step_us - 1) > NO_CHANGE_FRAC:
        return told
    bounds = after.bound_by or {"": 0.0}
    waits_for = max(bounds, key=lambda name: bounds[name])
    if waits_for in ("", "compute"):
        return f"{told}: devices work {100 * active_frac(after):.0f} % of it, at memory's rate"
    return f"{told}: it waits for the {waits_for}"


def cheapest_first(machines: Sequence[Any], on: Callable[[Any], Prediction]) -> Prediction:
    """The predictions `on` each of `machines` in one, what costs least per sample first, those
    without a price by their step; what cannot be predicted is a warning, one of all whose memory is
    too small. Raises the error of the last where none can."""
    found, refused, left_out = list[Prediction](), list[PerfmodelError](), dict[str, list[str]]()
    for name in machines:
        try:
            found.append(on(name))
        except PerfmodelError as error:
            refused.append(error)
            why = str(error).removeprefix(f"{name}: ")
            if isinstance(error, DoesNotFit):
                why = "their memory is too small (by how much, and what would do: --hardware NAME)"
            left_out.setdefault(why, []).append(str(name))
    if not found:
        raise refused[-1]
    results, source = [result for each in found for result in each.results], found[0].source
    if "serving" in source:
        source = source | {"serving": [row for each in found for row in each.source["serving"]]}
    results = billed(source, results)
    results.sort(key=lambda each: ((each.cost or {}).get("usd_per_million") or inf, each.step_us))
    lines = [f"left out {', '.join(names)}: {why}" for why, names in left_out.items()]
    lines += [line for each in found for line in each.warnings]
    return replace(found[0], source=source, results=results, warnings=list(dict.fromkeys(lines)))
