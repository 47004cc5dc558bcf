"""A machine that works: what its parts draw and cost, per hour and per million samples.

A part draws `idle + (1 - idle) x activity` of its peak (Source: Fan, Weber and Barroso, Power
provisioning for a warehouse-sized computer, ISCA 2007: linear in utilisation); what a whole node
draws at most, where it is known, scales all parts together, so fans and losses follow the load.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Node, Part, load

if TYPE_CHECKING:
    import pandas as pd


IDLE_FRAC = {"device": 0.13, "host": 0.4, "memory": 0.5, "nic": 0.8, "storage": 0.4}
"""Share of its peak that an idle part draws.

Source: assumed: data-centre GPUs report 50 to 70 of 400 to 700 W; servers of the last ten years
idle at a third to a half of their peak; adapters and drives hardly rest.
"""
REST_FRAC = 0.2
"""Assumed: what boards, fans and conversion draw beyond the parts where no one said what the whole
node draws. (DGX A100: 6.5 kW for 4.6 kW of parts, switches among them.)"""
MEMORY_W_PER_GB = 0.375
"""3 W per 8 GB of DDR4. Source: Crucial, how much power does memory use, recalled."""
MEMORY_USD_PER_GB = 4.0
"""Assumed: about what registered DDR4 cost from 2020 to 2023."""


@dataclass(frozen=True)
class PartCost:
    """One kind of part of a node: how many, what one draws at most, what one costs."""

    part: str
    name: str
    count: float
    peak_w: float
    price_usd: float | None
    source: str

    @property
    def idle_frac(self) -> float:
        return IDLE_FRAC[self.part]


def share_of_node(node: Node) -> float:
    """Of its usual node that a machine takes which was named by its device alone."""
    usual = node.device.usual_node
    if node.name != node.device.name or usual is None:
        return 1.0
    whole = load(usual, "node")
    return min(node.gpus / whole.gpus, 1.0) if isinstance(whole, Node) else 1.0


def parts_of(node: Node, share: float) -> tuple[PartCost, ...]:
    parts = [_part_cost("device", node.device, node.gpus)]
    if node.device.target != "cpu":
        parts.append(_part_cost("host", node.host, node.sockets * share))
    if node.host_memory_bytes:
        gb = node.host_memory_bytes / 1e9 * share
        text = f"{MEMORY_W_PER_GB:g} W per GB: Crucial, recalled; "
        text += f"{MEMORY_USD_PER_GB:g} USD per GB: assumed"
        parts.append(PartCost("memory", "DRAM", gb, MEMORY_W_PER_GB, MEMORY_USD_PER_GB, text))
    if node.nic is not None and node.nics:
        parts.append(_part_cost("nic", node.nic, node.nics * share))
    if node.expansion is not None:
        parts.append(replace(_part_cost("expansion", node.expansion, share), part="memory"))
    if node.storage is not None:
        parts.append(_part_cost("storage", node.storage, (node.drives or 1) * share))
    return tuple(parts)


UNKNOWN_W = {"host": 200.0, "nic": 20.0, "storage": 15.0, "expansion": 25.0}
"""Assumed where a part's peak is not in its file: a server's socket, an adapter, a drive, a card of
memory."""


def _part_cost(kind: str, part: Part, count: float) -> PartCost:
    peak_w, price_usd = getattr(part, "tdp_w", None), getattr(part, "price_usd", None)
    told = part.sources.get("tdp_w", "not stated")
    if peak_w is None:
        peak_w, told = UNKNOWN_W[kind], f"assumed: {UNKNOWN_W[kind]:g} W"
    source = f"{part.name}: {told}; price: {part.sources.get('price_usd', 'not known')}"
    return PartCost(kind, part.name, count, peak_w, price_usd, source)


@dataclass(frozen=True)
class Prices:
    """What a user says of money; what is None comes from the catalogue.

    `usd_per_hour` rents one node, electricity included; else `purchase_usd` buys it and is spread
    over `years` of which the machine works `used_frac`, and energy comes on top, `facility_ratio`
    times what the machine draws. Raises `UsageError` for what no price can be, and for figures of
    a machine that is bought beside a rent.
    """

    usd_per_hour: float | None = None
    purchase_usd: float | None = None
    years: float = 4.0
    used_frac: float = 1.0
    usd_per_kwh: float = 0.08
    facility_ratio: float = 1.1

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(f"prices: {part.name} of {value:g}: expected 0 or more")
        said = [name for name in BOUGHT if not is_default(self, name)]
        if said and self.usd_per_hour is not None:
            raise UsageError(f"prices: {said[0]} beside usd_per_hour: a rent includes it")
        if not (self.years > 0 and 0 < self.used_frac <= 1):
            raise UsageError("prices: expected years above 0 and a used_frac above 0, at most 1")


BOUGHT = ("purchase_usd", "years", "usd_per_kwh", "facility_ratio")
"""What a rent leaves nothing to say of."""

ASSUMED = {
    "years": "assumed: 4 years, the usual life of servers in books of cloud companies",
    "used_frac": "assumed: the machine does nothing else, and always this",
    "usd_per_kwh": "US industrial average of 2023, about (EIA), recalled",
    "facility_ratio": "assumed: a modern data centre's PUE",
}
"""Where the defaults of `Prices` come from."""


def is_default(said: Prices, key: str) -> bool:
    """Whether nobody changed a figure."""
    return bool(getattr(said, key) == getattr(Prices, key))


Number = float | NDArray[np.float64]

HOURS_PER_YEAR = 8_766.0
SECONDS_PER_HOUR = 3_600.0
J_PER_KWH = 3.6e6
MILLION = 1e6


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

    def scaled(self, frac: float) -> Activity:
        """Of a machine that works `frac` of the time."""
        return Activity(*(frac * getattr(self, part.name) for part in fields(self)))

    def of(self, part: str) -> Number:
        """Of `device`, `host`, …; memory works as its host does."""
        activity: Number = getattr(self, f"{'host' if part == 'memory' else part}_frac")
        return activity


@dataclass(frozen=True)
class OperatingCosts:
    """What running `nodes` equal nodes, and the cluster's `others`, takes, before it is known how
    busy they are.

    `scale`: what a node draws over the sum of its parts. `purchase_usd` is of one node, None where
    it, or a part of it, has no price; `rent_usd_per_hour` of one node, None unless rented.
    """

    nodes: int
    parts: tuple[PartCost, ...]
    scale: float
    purchase_usd: float | None
    rent_usd_per_hour: float | None
    prices: Prices
    sources: dict[str, str] = field(compare=False)
    others: OperatingCosts | None = None

    def power_w(self, activity: Activity) -> Number:
        """What all nodes draw; as many figures as `activity` has."""
        drawn: Number = 0.0
        for part in self.parts:
            share = part.idle_frac + (1 - part.idle_frac) * activity.of(part.part)
            drawn = drawn + part.count * part.peak_w * share
        own = drawn * self.scale * self.nodes
        return own if self.others is None else own + self.others.power_w(activity)

    def usd_per_hour(self, power_w: Number) -> Number | None:
        """What all nodes cost while they draw `power_w`; None where nobody knows a price, and where
        some are rented and others bought."""
        held, prices = self._held_usd_per_hour, self.prices
        if held is None or self.rent_usd_per_hour is not None:
            return held
        return held + power_w / 1e3 * prices.facility_ratio * prices.usd_per_kwh

    @property
    def _held_usd_per_hour(self) -> float | None:
        """Rent, or purchase spread over the hours worked."""
        rent, others = self.rent_usd_per_hour, self.others
        hours = 1.0 if rent is not None else self.prices.years * HOURS_PER_YEAR
        price = self.purchase_usd if rent is None else rent
        own = None if price is None else price * self.nodes / hours / self.prices.used_frac
        if own is None or others is None:
            return own
        beside = others._held_usd_per_hour
        is_alike = (others.rent_usd_per_hour is None) == (rent is None)
        return own + beside if beside is not None and is_alike else None

    def economics(self, samples_per_s: Number, activity: Activity | None = None) -> Economics:
        """At a rate of samples of the whole cluster; `UsageError` unless it is above 0."""
        if not (np.asarray(samples_per_s) > 0).all():
            raise UsageError(f"economics: {np.min(samples_per_s):g} samples per second")
        power_w = self.power_w(activity or Activity())
        return Economics(samples_per_s, power_w, self.usd_per_hour(power_w), self)


@dataclass(frozen=True)
class Economics:
    """Power, energy and money of a machine at a rate of samples; arrays where rates are.

    Money is None where a part has no price.
    """

    samples_per_s: Number
    power_w: Number
    usd_per_hour: Number | None
    running: OperatingCosts

    @property
    def energy_j_per_sample(self) -> Number:
        """Of the machine itself, without its building."""
        return self.power_w / self.samples_per_s

    @property
    def kwh_per_million_samples(self) -> Number:
        return self.energy_j_per_sample * MILLION / J_PER_KWH

    @property
    def usd_per_million_samples(self) -> Number | None:
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / SECONDS_PER_HOUR / self.samples_per_s * MILLION

    @property
    def sources(self) -> dict[str, str]:
        """Figure to where it comes from, assumptions among them."""
        return self.running.sources

    def to_dict(self) -> dict[str, Any]:
        """The figures, lists where they are arrays, and their sources."""
        names = ("samples_per_s", "power_w", "energy_j_per_sample", "kwh_per_million_samples")
        figures = {name: getattr(self, name) for name in names}
        figures["usd_per_hour"] = self.usd_per_hour
        figures["usd_per_million_samples"] = self.usd_per_million_samples
        plain = {key: None if v is None else np.asarray(v).tolist() for key, v in figures.items()}
        return plain | {"sources": self.sources}

    def to_frame(self) -> pd.DataFrame:
        """One row per rate."""
        import pandas as pd

        table = {key: value for key, value in self.to_dict().items() if key != "sources"}
        count = np.size(np.asarray(self.samples_per_s) + np.asarray(self.power_w))
        return pd.DataFrame({key: np.resize(np.asarray(v), count) for key, v in table.items()})


def operating_costs(machine: Cluster, prices: Prices | None = None) -> OperatingCosts:
    """What `machine` draws and costs, from its parts, its nodes and what a user says of prices."""
    said = prices or Prices()
    node, others = machine.node, machine.others
    count = len(machine.kinds[0][1]) // node.gpus
    share = share_of_node(node)
    parts = parts_of(node, share)
    peak_w = sum(part.count * part.peak_w for part in parts)
    sources = {part.part: part.source for part in parts}
    sources |= {key: text for key, text in ASSUMED.items() if is_default(said, key)}
    sources["idle_frac"] = "assumed: " + ", ".join(f"{k} {v:g}" for k, v in IDLE_FRAC.items())
    if node.power_w is None:
        scale = 1 + REST_FRAC
        sources["power_w"] = f"assumed: {REST_FRAC:.0%} beyond the parts"
    else:
        scale = node.power_w * share / peak_w
        sources["power_w"] = node.sources.get("power_w", "not stated")
    purchase_usd, rent = _money(node, share, parts, said, sources)
    behind = None if others is None else operating_costs(others, said)
    return OperatingCosts(count, parts, scale, purchase_usd, rent, said, sources, behind)


def _money(
    node: Node, share: float, parts: tuple[PartCost, ...], said: Prices, sources: dict[str, str]
) -> tuple[float | None, float | None]:
    """Price of one node, and its rent per hour where it is rented; says which in `sources`."""
    if said.usd_per_hour is not None:
        sources["usd_per_hour"] = "given"
        return None, said.usd_per_hour
    if said.purchase_usd is not None:
        sources["purchase_usd"] = "given"
        return said.purchase_usd, None
    if node.price_usd is not None:
        sources["purchase_usd"] = node.sources.get("price_usd", "not stated")
        return node.price_usd * share, None
    if node.price_usd_per_hour is not None:
        sources["usd_per_hour"] = node.sources.get("price_usd_per_hour", "not stated")
        return None, node.price_usd_per_hour * share
    unpriced = [part.name for part in parts if part.price_usd is None]
    if unpriced:
        sources["purchase_usd"] = f"not known: {', '.join(unpriced)} without a price"
        return None, None
    sources["purchase_usd"] = "sum of the parts, without boards, case and power supplies"
    return sum(part.count * (part.price_usd or 0.0) for part in parts), None
