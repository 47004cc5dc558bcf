"""How libraries run a collective: ring, tree, direct and multicast, each by three protocols.

An algorithm gives its hops, and the bytes that pass one rank's links and one domain's adapters; a
protocol gives what a hop takes and what share of a rate it reaches. Inapplicable pairs are
infinite.

Source: the structure is that of NCCL's documented algorithms and protocols (LL, LL128, Simple).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.base.registry import Registry
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import MESH, PCIE, Calls

_C = coefficients("collectives.algorithms")


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
    """A rank's own piece, that it copies; its rate is a share of the links'."""
    is_multicast: bool = False
    is_direct: bool = False
    peers: Floats | float = 0.0
    """Partners that one rank serves at once."""
    protocols: tuple[str, ...] = ("ll", "ll128", "simple")
    is_filled: Mask | bool = True
    """Whether pieces are handed on, so that a pipeline of them has to fill."""
    barriers: float = 0.0
    """At which ranks of kernels that no library launches wait for one another; 0: a library's."""


Algorithm = Callable[[Calls], Plan]
ALGORITHMS: Registry[Algorithm] = Registry("collective algorithm", "perfmodel.network.algorithms")

_RING_TURNS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_ROOTED = ("broadcast", "reduce")
MAX_RING_RANKS = 4
"""Where the switch can add and copy, it does for more ranks of a domain than these."""


def _is(calls: Calls, *ops: str) -> Mask:
    return np.isin(calls.op, ops)


def _log2(values: Floats) -> Floats:
    return np.log2(np.maximum(values, 1.0))


@ALGORITHMS.register("ring")
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
        own_bytes=np.where(turns > 0, calls.size_bytes / calls.ranks, 0.0),
    )


@ALGORITHMS.register("tree")
def tree(calls: Calls) -> Plan:
    """Two binary trees over the domains, a chain within each; only where domains are several."""
    both = _is(calls, "all_reduce", "barrier")
    ways = np.where(both, 2.0, 1.0)
    size = np.where(calls.op == "barrier", 0.0, calls.size_bytes)
    crossings = np.where((calls.domains > 2) | ~calls.has_two_way_tree, ways, 1.0)
    return Plan(
        link_hops=ways * np.maximum(calls.local - 1, _log2(calls.local)),
        net_hops=ways * np.ceil(_log2(calls.domains)),
        link_bytes=ways * size,
        net_bytes=np.where(calls.is_remote, crossings * size, 0.0),
        message_bytes=size / _C.message_parts,
        applies=both & calls.is_remote | _is(calls, "barrier", *_ROOTED),
    )


@ALGORITHMS.register("multicast")
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


@ALGORITHMS.register("in_network")
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


@ALGORITHMS.register("direct")
def direct(calls: Calls) -> Plan:
    """Every rank sends to every other at once (all-to-all), or to the next (send and receive)."""
    each = calls.size_bytes / calls.ranks
    local = calls.local
    pair = _is(calls, "send_recv")
    remote = calls.ranks - local
    to_all = _is(calls, "all_to_all")
    return Plan(
        link_hops=np.ones(len(calls)),
        net_hops=np.where(calls.is_remote, 1.0, 0.0),
        link_bytes=np.where(
            pair,
            np.where(local > 1, calls.size_bytes * calls.link_peers, 0.0),
            each * (local - 1) * _hops(calls),
        ),
        net_bytes=np.where(
            calls.is_remote, np.where(pair, calls.size_bytes, local * each * remote), 0.0
        ),
        message_bytes=np.where(pair, calls.size_bytes, each),
        messages=np.where(pair | ~calls.is_remote, 0.0, remote),
        applies=pair | to_all,
        is_alone=pair,
        is_direct=True,
        own_bytes=np.where(to_all, each, 0.0),
        peers=np.where(to_all, local - 1, 0.0),
        is_filled=to_all | calls.is_remote,
    )


@ALGORITHMS.register("one_shot")
def one_shot(calls: Calls) -> Plan:
    """Every rank reads all buffers over links and adds them up (vLLM, SGLang, TensorRT-LLM)."""
    return _by_reads(calls, calls.size_bytes * (calls.ranks - 1), 1.0)


@ALGORITHMS.register("two_shot")
def two_shot(calls: Calls) -> Plan:
    """Every rank reads its part of all buffers and adds it up, then the other ranks' sums."""
    return _by_reads(calls, 2.0 * calls.size_bytes * (calls.ranks - 1) / calls.ranks, 2.0)


def _by_reads(calls: Calls, link_bytes: Floats, barriers: float) -> Plan:
    """Among more than two ranks without links frameworks leave it to the library."""
    none = np.zeros(len(calls))
    is_near = ~calls.is_remote & ((calls.link != PCIE) | (calls.ranks <= 2))
    return Plan(
        link_hops=none,
        net_hops=none,
        link_bytes=link_bytes * _hops(calls),
        net_bytes=none,
        message_bytes=none,
        applies=_is(calls, "all_reduce") & calls.is_custom & is_near,
        protocols=("simple",),
        barriers=barriers,
    )


def _hops(calls: Calls) -> Floats:
    """Links that a piece of an exchange passes, on average: in a mesh, ranks that are not wired to
    one another are reached over one that is."""
    wired = np.where(calls.link == MESH, calls.link_peers, np.inf)
    others = np.maximum(calls.local - 1, 1.0)
    return 2.0 - np.minimum(wired / others, 1.0)
