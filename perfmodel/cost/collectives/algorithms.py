"""How libraries run a collective, and what that takes: the lower envelope of algorithms.

An algorithm gives its hops, and the bytes that pass one rank's links and one domain's adapters; a
protocol gives what a hop takes and what share of a rate it reaches. Each pair of both takes base +
hops + messages + the longer of links and network + what it takes to fill the pipeline, which grows
with the root of the bytes (chunks of the best size). The cheapest pair is the answer: continuous in
size and monotone, since each pair is. Pairs that cannot run are infinite.

Source: the structure is that of NCCL's documented algorithms and protocols (LL, LL128, Simple).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import INFINIBAND, MESH, SWITCH, Calls
from perfmodel.errors import ModelError
from perfmodel.hardware.catalogue import nearest_known, reduces_in_switch

_C = coefficients("collectives.algorithms")
_RING_TURNS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_ROOTED = ("broadcast", "reduce")
MAX_RING_RANKS = 4
"""Where the switch can add and copy, it does for more ranks of a domain than these."""


@dataclass(frozen=True)
class Plan:
    """What one algorithm moves, per call."""

    link_hops: Floats
    """Hops over links that follow one another."""
    net_hops: Floats
    link_bytes: Floats
    """Through the links of one rank, one direction."""
    net_bytes: Floats
    """Through the adapters of one domain, one direction; or of one rank, see `is_alone`."""
    message_bytes: Floats
    """Of one message over the network."""
    applies: Mask
    messages: Floats | float = 0.0
    """Sent one by one by a rank, beyond the hops."""
    is_alone: Mask | bool = False
    """Whether one rank's adapter carries `net_bytes`."""
    own_bytes: Floats | float = 0.0
    """A rank's own piece, that it copies: at a share of the links' rate, alone at its memory's."""
    is_multicast: bool = False
    is_direct: bool = False
    peers: Floats | float = 0.0
    """Partners that one rank serves at once."""
    protocols: tuple[str, ...] = ("ll", "ll128", "simple")
    is_filled: Mask | bool = True
    """Whether pieces are handed on, so that a pipeline of them has to fill."""


def _is(calls: Calls, *ops: str) -> Mask:
    return np.isin(calls.op, ops)


def _log2(values: Floats) -> Floats:
    return np.log2(np.maximum(values, 1.0))


def ring(calls: Calls) -> Plan:
    """Every rank passes pieces to the next; once for each turn of the op."""
    turns = np.select([calls.op == op for op in _RING_TURNS], list(_RING_TURNS.values()), 0.0)
    rooted = _is(calls, *_ROOTED)
    share = np.where(rooted, 1.0, turns * (calls.ranks - 1) / calls.ranks)
    laps = np.where(rooted, 1.0, turns)
    moved = share * calls.size_bytes
    return Plan(
        link_hops=laps * (calls.ranks - calls.domains),
        net_hops=laps * (calls.domains - 1),
        link_bytes=moved,
        net_bytes=np.where(calls.is_remote, moved, 0.0),
        message_bytes=calls.size_bytes / calls.ranks,
        applies=(turns > 0) | rooted,
        own_bytes=np.where((turns > 0) & ~calls.is_empty, calls.size_bytes / calls.ranks, 0.0),
    )


def tree(calls: Calls) -> Plan:
    """Two binary trees over the domains, a chain within each; only where domains are several."""
    both = _is(calls, "all_reduce", "barrier")
    ways = np.where(both, 2.0, 1.0)
    size = np.where(calls.op == "barrier", 0.0, calls.size_bytes)
    # Two domains exchange halves from Hopper on, so that a tree sends each byte once.
    exchanges = calls.by_kind("architecture", reduces_in_switch) > 0
    crossings = np.where((calls.domains > 2) | ~exchanges, ways, 1.0)
    return Plan(
        link_hops=ways * np.maximum(calls.local - 1, _log2(calls.local)),
        net_hops=ways * np.ceil(_log2(calls.domains)),
        link_bytes=ways * size,
        net_bytes=np.where(calls.is_remote, crossings * size, 0.0),
        message_bytes=size / _C.message_parts,
        applies=both & calls.is_remote | _is(calls, "barrier", *_ROOTED),
    )


def multicast(calls: Calls) -> Plan:
    """The switch adds and copies (NVLink SHARP), a tree joins the domains."""
    crossings = np.where(calls.domains > 2, 2.0, 1.0)
    return Plan(
        link_hops=np.ones(len(calls)),
        net_hops=2.0 * np.ceil(_log2(calls.domains)),
        link_bytes=calls.size_bytes,
        net_bytes=np.where(calls.is_remote, crossings * calls.size_bytes, 0.0),
        message_bytes=calls.size_bytes / _C.message_parts,
        applies=_is(calls, "all_reduce") & calls.has_multicast & (calls.local > MAX_RING_RANKS),
        is_multicast=True,
        protocols=("simple",),
    )


def in_network(calls: Calls) -> Plan:
    """The network's switches add and copy: a byte leaves a domain once, and comes once.

    Within a domain pieces are added up before, and handed on after.
    """
    local = calls.local
    return Plan(
        link_hops=2.0 * np.minimum(local - 1, 1.0),
        net_hops=np.full(len(calls), 2.0),
        link_bytes=2.0 * calls.size_bytes * (local - 1) / local,
        net_bytes=calls.size_bytes,
        message_bytes=calls.size_bytes / local,
        applies=_is(calls, "all_reduce") & calls.in_network & calls.is_remote,
        protocols=("simple",),
    )


def direct(calls: Calls) -> Plan:
    """Every rank sends to every other at once (all-to-all), or to the next (send and receive)."""
    each, local, size = calls.size_bytes / calls.ranks, calls.local, calls.size_bytes
    pair, to_all = _is(calls, "send_recv"), _is(calls, "all_to_all")
    remote = calls.ranks - local
    # Links that a piece passes, on average: in a mesh, ranks that are not wired to one another are
    # reached over one that is.
    wired = np.where(calls.link == MESH, calls.link_peers, np.inf)
    hops = 2.0 - np.minimum(wired / np.maximum(local - 1, 1.0), 1.0)
    of_pair = np.where(local > 1, size * calls.link_peers, 0.0)
    of_domain = np.where(pair, size, local * each * remote)
    return Plan(
        link_hops=np.ones(len(calls)),
        net_hops=np.where(calls.is_remote, 1.0, 0.0),
        link_bytes=np.where(pair, of_pair, each * (local - 1) * hops),
        net_bytes=np.where(calls.is_remote, of_domain, 0.0),
        message_bytes=np.where(pair, size, each),
        messages=np.where(pair | ~calls.is_remote, 0.0, remote),
        applies=pair | to_all,
        is_alone=pair,
        is_direct=True,
        own_bytes=np.where(to_all, each, 0.0),
        peers=np.where(to_all, local - 1, 0.0),
        is_filled=to_all | calls.is_remote,
    )


ALGORITHMS: Mapping[str, Callable[[Calls], Plan]] = {
    "direct": direct,
    "in_network": in_network,
    "multicast": multicast,
    "ring": ring,
    "tree": tree,
}
Constants = Mapping[str, float]
"""`TABLE.NAME` to its value in the unit that the name ends in."""
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
        return self.base_us + self.hop_us + np.maximum(self.link_us, self.net_us) + self.fill_us


def costs_of(calls: Calls, constants: Constants) -> Costs:
    """The cheapest algorithm and protocol per call, and what it is made of."""

    def of_network(name: str) -> Floats:
        """A network of unknown kind has what InfiniBand has."""
        usual = constants[f"{INFINIBAND}.{name}"]
        return calls.by_kind("network", lambda kind: constants.get(f"{kind}.{name}", usual))

    def of_generation(name: str) -> Floats:
        """Of the devices' generation, or of the nearest that has one; else 1."""
        known = {key.partition(".")[0]: constants[key] for key in constants if key.endswith(name)}
        known[""] = 1.0
        return calls.by_kind("architecture", lambda kind: known[nearest_known(kind, known) or ""])

    networks = ("hop_us", "message_us", "handshake_us", "frac", "direct_frac", "fill_us")
    given = {name: of_network(name) for name in networks}
    given |= {name: of_generation(name) for name in ("base_factor", "hop_factor", "fill_factor")}
    given["link_frac"] = calls.by_kind("link", lambda kind: constants[f"link.{kind}_frac"])
    plans = {name: plan_of(calls) for name, plan_of in ALGORITHMS.items()}
    pairs = [(name, protocol) for name, plan in plans.items() for protocol in plan.protocols]
    parts = [_parts(calls, plans[name], protocol, constants, given) for name, protocol in pairs]
    base, hop, link, net, fill = stacked = [np.stack(part) for part in zip(*parts, strict=True)]
    total = base + hop + np.maximum(link, net) + fill
    chosen, rows = np.argmin(total, axis=0), np.arange(len(calls))
    bad = np.flatnonzero(~np.isfinite(total[chosen, rows]))
    if len(bad):
        raise ModelError(f"no algorithm for {calls.op[bad[0]]} (row {bad[0]})")
    return Costs(tuple(map("/".join, pairs)), chosen, *(part[chosen, rows] for part in stacked))


def _parts(
    calls: Calls, plan: Plan, protocol: str, constants: Constants, of: Mapping[str, Floats]
) -> tuple[Floats, ...]:
    """Base, hops and messages, links, network, filling; infinite hops where the pair cannot run.

    `of` are the constants of each call's network, generation and link.
    """
    hop = constants["hop.multicast_us" if plan.is_multicast else f"hop.{protocol}_us"]
    hop_us = (
        plan.link_hops * hop * of["hop_factor"]
        + plan.net_hops * of["hop_us"]
        + plan.messages * of["message_us"]
        + (plan.net_hops + plan.messages * constants["net.overlap_frac"])
        * of["handshake_us"]
        * plan.message_bytes
        / (plan.message_bytes + constants["net.eager_bytes"])
        + plan.peers * constants["base.peer_us"]
    )
    link_frac = constants["link.multicast_frac"] if plan.is_multicast else of["link_frac"]
    net_frac = of["direct_frac" if plan.is_direct else "frac"]
    is_measured = (calls.op == "all_to_all") & (calls.exchange_frac > 0)
    net_frac = np.where(is_measured, calls.exchange_frac, net_frac)
    if plan.is_direct:
        link_frac = link_frac * constants["link.direct_factor"]
    is_simple = protocol == "simple"
    if not is_simple:
        link_frac = link_frac * constants[f"link.{protocol}_factor"]
        net_frac = net_frac * constants[f"net.{protocol}_factor"]
    moved = plan.link_bytes / link_frac + plan.own_bytes * constants["link.own_factor"]
    link_us = moved / (calls.link_gb_per_s * BYTES_PER_US)
    copy_us = 2.0 * calls.size_bytes / (calls.memory_gb_per_s * BYTES_PER_US)
    link_us = np.where(calls.is_copy, copy_us, link_us)
    nic = np.where(plan.is_alone, calls.rank_nic_gb_per_s, calls.nic_gb_per_s)
    net_us = plan.net_bytes / (np.maximum(nic, 1e-9) * net_frac * BYTES_PER_US)
    fill_us = np.zeros(len(calls))
    if is_simple:
        link_fill = constants["link.fill_us"] * of["fill_factor"]
        fill = np.where(calls.is_remote, of["fill_us"], link_fill)
        fill_us = np.where(plan.is_filled, 2.0 * np.sqrt(fill * np.maximum(link_us, net_us)), 0.0)
    base_us = constants["base.call_us"] * of["base_factor"]
    applies = plan.applies & (calls.link == SWITCH) if protocol == "ll128" else plan.applies
    return base_us, np.where(applies, hop_us, np.inf), link_us, net_us, fill_us
