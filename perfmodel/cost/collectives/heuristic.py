"""Collectives by hardware figures alone: the lower envelope of algorithms and protocols.

Each pair takes base + hops + messages + the longer of links and network + what it takes to fill
the pipeline, which grows with the root of the bytes (chunks of the best size). Continuous in size
and monotone, since each pair is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.algorithms import ALGORITHMS, Plan
from perfmodel.cost.collectives.calls import EAGER, INFINIBAND, SWITCH, Calls
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.hardware.generations import nearest_known


@dataclass(frozen=True)
class Constants:
    """`values`: `TABLE.NAME` to its value in the unit that the name ends in."""

    values: Mapping[str, float]
    source: str

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @cached_property
    def factors(self) -> dict[str, dict[str, float]]:
        """By name, then by generation, those that are not 0."""
        result: dict[str, dict[str, float]] = defaultdict(dict)
        for key, value in self.values.items():
            word, _, name = key.partition(".")
            if value:
                result[name][word] = value
        return result

    def of_network(self, calls: Calls, name: str) -> Floats:
        """`NETWORK.name` per call; a network of unknown kind has that of InfiniBand."""
        usual = self.values[f"{INFINIBAND}.{name}"]
        return calls.by_kind("network", lambda kind: self.values.get(f"{kind}.{name}", usual))

    def of_generation(self, calls: Calls, name: str) -> Floats:
        """The factor `name` of the devices' generation, or of the nearest that has one; else 1."""
        factors = self.factors[name]

        def factor(kind: str) -> float:
            known = nearest_known(kind, factors)
            return 1.0 if known is None else factors[known]

        return calls.by_kind("architecture", factor)

    def of_link(self, calls: Calls) -> Floats:
        """Share of the links' rate that plain transfers reach."""
        return calls.by_kind("link", lambda kind: self.values[f"link.{kind}_frac"])


@cache
def shipped() -> Constants:
    """The constants of the model that the package carries."""
    content = Path(__file__).with_name("fitted.json").read_bytes()
    values = json.loads(content)["constants"]
    return Constants({str(name): float(value) for name, value in values.items()}, "fitted.json")


_C = coefficients("collectives.heuristic")
SPECS = "specs"
FORMULA = (
    "base_us + hops_us + max(links_us, network_us) + filling_us of the cheapest algorithm and "
    "protocol"
)
BYTES_PER_US = 1e3
"""Of a rate of 1 GB/s."""


@dataclass(frozen=True)
class Costs:
    """Of each call by its best pair, microseconds; `total_us` is their sum (link and net: max)."""

    names: tuple[str, ...]
    chosen: NDArray[np.int64]
    base_us: Floats
    hop_us: Floats
    link_us: Floats
    net_us: Floats
    fill_us: Floats

    @property
    def total_us(self) -> Floats:
        """Duration of each call."""
        longest = np.maximum(self.link_us, self.net_us)
        return self.base_us + self.hop_us + longest + self.fill_us


Parts = tuple[Floats, Floats, Floats, Floats, Floats]
"""Base, hops and messages, links, network, filling."""


def costs_of(calls: Calls, constants: Constants | None = None) -> Costs:
    """The cheapest algorithm and protocol per call, and what it is made of."""
    given = constants or shipped()
    names: list[str] = []
    parts: list[Parts] = []
    for name in ALGORITHMS:
        plan = ALGORITHMS[name](calls)
        for protocol in plan.protocols:
            names.append(f"{name}/{protocol}")
            parts.append(_parts(calls, plan, protocol, given))
    base, hop, link, net, fill = stacked = [np.stack(part) for part in zip(*parts, strict=True)]
    total = base + hop + np.maximum(link, net) + fill
    chosen, rows = np.argmin(total, axis=0), np.arange(len(calls))
    bad = np.flatnonzero(~np.isfinite(total[chosen, rows]))
    if len(bad):
        raise ModelError(f"no algorithm for {calls.op[bad[0]]} (row {bad[0]})")
    return Costs(tuple(names), chosen, *(part[chosen, rows] for part in stacked))


def _parts(calls: Calls, plan: Plan, protocol: str, given: Constants) -> Parts:
    """Base, hops and messages, links, network, filling; infinite hops where the pair cannot run."""
    if plan.barriers:
        return _kernel_parts(calls, plan, given)
    is_simple = protocol == "simple"
    is_switch = calls.link == SWITCH
    applies = plan.applies & is_switch if protocol == "ll128" else plan.applies
    hop_us = (
        plan.link_hops
        * given["hop.multicast_us" if plan.is_multicast else f"hop.{protocol}_us"]
        * given.of_generation(calls, "hop_factor")
        + plan.net_hops * given.of_network(calls, "hop_us")
        + plan.messages * given.of_network(calls, "message_us")
        + (plan.net_hops + plan.messages * given["net.overlap_frac"])
        * given.of_network(calls, "handshake_us")
        * plan.message_bytes
        / (plan.message_bytes + given["net.eager_bytes"])
        + plan.peers * given["base.peer_us"]
    )
    link_frac = given["link.multicast_frac"] if plan.is_multicast else given.of_link(calls)
    net_frac = given.of_network(calls, "direct_frac" if plan.is_direct else "frac")
    is_measured = (calls.op == "all_to_all") & (calls.exchange_frac > 0)
    net_frac = np.where(is_measured, calls.exchange_frac, net_frac)
    if plan.is_direct:
        link_frac = link_frac * given["link.direct_factor"]
    if not is_simple:
        link_frac = link_frac * given[f"link.{protocol}_factor"]
        net_frac = net_frac * given[f"net.{protocol}_factor"]
    moved = plan.link_bytes / link_frac + plan.own_bytes * given["link.own_factor"]
    link_us = moved / (calls.link_gb_per_s * BYTES_PER_US)
    nic = np.where(plan.is_alone, calls.rank_nic_gb_per_s, calls.nic_gb_per_s)
    net_us = plan.net_bytes / (np.maximum(nic, 1e-9) * net_frac * BYTES_PER_US)
    fill_us = np.zeros(len(calls))
    if is_simple:
        link_fill = given["link.fill_us"] * given.of_generation(calls, "fill_factor")
        fill = np.where(calls.is_remote, given.of_network(calls, "fill_us"), link_fill)
        fill_us = np.where(plan.is_filled, 2.0 * np.sqrt(fill * np.maximum(link_us, net_us)), 0.0)
    base_us = given["base.call_us"] * given.of_generation(calls, "base_factor")
    base_us = base_us + _eager_us(calls, given)
    return base_us, np.where(applies, hop_us, np.inf), link_us, net_us, fill_us


def _kernel_parts(calls: Calls, plan: Plan, given: Constants) -> Parts:
    """The same of one kernel that reads over links, without a pipeline to fill."""
    none = np.zeros(len(calls))
    base_us = given["custom.call_us"] * given.of_generation(calls, "base_factor")
    hop_us = plan.barriers * (given["custom.barrier_us"] + given["custom.peer_us"] * calls.ranks)
    link_us = plan.link_bytes / (calls.link_gb_per_s * given["custom.link_frac"] * BYTES_PER_US)
    hop_us = np.where(plan.applies, hop_us, np.inf)
    return base_us + _eager_us(calls, given), hop_us, link_us, none, none


def _eager_us(calls: Calls, given: Constants) -> Floats:
    """What launching one by one takes, with a copy of the input in device memory."""
    rate = calls.link_gb_per_s * given["custom.copy_factor"] * BYTES_PER_US
    return np.where(
        calls.variant == EAGER, given["custom.eager_us"] + 2.0 * calls.size_bytes / rate, 0.0
    )


@dataclass(frozen=True)
class Heuristic:
    """The lower envelope with a fixed relative 90 % interval."""

    name: str

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`; raises `ModelError` for an op without an algorithm."""
        total = costs_of(calls).total_us
        spread = np.where(calls.is_remote, _C.remote_spread, _C.spread)
        return Estimate(total, total / spread, total * spread, self.name, SPECS)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        return explanations(calls, costs_of(calls))


def explanations(calls: Calls, costs: Costs) -> list[Explanation]:
    """One explanation per call: what it is made of, and by which algorithm and protocol."""
    total, longest = costs.total_us, np.maximum(costs.link_us, costs.net_us)
    by = np.where(costs.net_us > costs.link_us, "network", "links")
    by = np.where(longest < total / 2, "latency", by)
    moved = calls.size_bytes * (calls.ranks - 1) / calls.ranks
    terms = {
        "base_us": costs.base_us,
        "hops_us": costs.hop_us,
        "links_us": costs.link_us,
        "network_us": costs.net_us,
        "filling_us": costs.fill_us,
    }
    return [
        Explanation(
            duration_us=float(total[row]),
            bound_by=f"{by[row]} ({costs.names[costs.chosen[row]]})",
            flop=0.0,
            read_bytes=float(moved[row]),
            written_bytes=float(moved[row]),
            utilisation_frac=float(longest[row] / total[row]),
            terms={name: float(each[row]) for name, each in terms.items()},
            formula=FORMULA,
        )
        for row in range(len(calls))
    ]
