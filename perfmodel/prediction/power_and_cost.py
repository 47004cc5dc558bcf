"""What the parts of a node draw and cost, and what a user says of money."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite

from perfmodel.errors import UsageError
from perfmodel.hardware import Node, Part, load

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
class PartBill:
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


def parts_of(node: Node, share: float) -> tuple[PartBill, ...]:
    parts = [_bill("device", node.device, node.gpus)]
    if node.device.target != "cpu":
        parts.append(_bill("host", node.host, node.sockets * share))
    if node.host_memory_bytes:
        gb = node.host_memory_bytes / 1e9 * share
        text = f"{MEMORY_W_PER_GB:g} W per GB: Crucial, recalled; "
        text += f"{MEMORY_USD_PER_GB:g} USD per GB: assumed"
        parts.append(PartBill("memory", "DRAM", gb, MEMORY_W_PER_GB, MEMORY_USD_PER_GB, text))
    if node.nic is not None and node.nics:
        parts.append(_bill("nic", node.nic, node.nics * share))
    if node.expansion is not None:
        parts.append(replace(_bill("expansion", node.expansion, share), part="memory"))
    if node.storage is not None:
        parts.append(_bill("storage", node.storage, (node.drives or 1) * share))
    return tuple(parts)


UNKNOWN_W = {"host": 200.0, "nic": 20.0, "storage": 15.0, "expansion": 25.0}
"""Assumed where a part's peak is not in its file: a server's socket, an adapter, a drive, a card of
memory."""


def _bill(kind: str, part: Part, count: float) -> PartBill:
    peak_w, price_usd = getattr(part, "tdp_w", None), getattr(part, "price_usd", None)
    told = part.sources.get("tdp_w", "not stated")
    if peak_w is None:
        peak_w, told = UNKNOWN_W[kind], f"assumed: {UNKNOWN_W[kind]:g} W"
    source = f"{part.name}: {told}; price: {part.sources.get('price_usd', 'not known')}"
    return PartBill(kind, part.name, count, peak_w, price_usd, source)


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
