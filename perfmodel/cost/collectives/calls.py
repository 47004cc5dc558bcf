"""Collectives as columns: what is sent, among whom, over which wires."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Node
from perfmodel.hardware.generations import reduces_in_switch
from perfmodel.ops.rows import Rows
from perfmodel.registry import Registry

SWITCH, MESH, BRIDGE, PCIE = "switch", "mesh", "bridge", "pcie"
NCCL, CUSTOM, EAGER = "nccl", "custom", "custom_eager"
"""Variants: the library's collectives alone; an all-reduce by kernels of an inference framework
where these are faster, launched by a graph; the same launched one by one, behind a copy of its
input."""
INFINIBAND = "infiniband"


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The wires of one machine: a domain is what the links join (a node, or a rack of them)."""

    link: str
    """`switch`, `mesh`, `bridge` or `pcie`."""
    link_gb_per_s: float
    """Per rank, all its links together, one direction."""
    domain_ranks: int
    """How many ranks the links of one domain join."""
    node_ranks: int
    """How many ranks share one node's network adapters."""
    architecture: str
    """The devices' generation, `hopper`; it decides on base latencies."""
    has_multicast: bool
    """The switch reduces and copies by itself (NVLink SHARP)."""
    network: str | None
    """`infiniband roce slingshot efa tcp`; None where no adapter is known."""
    node_nic_gb_per_s: float
    """All adapters of one node together, one direction."""
    nics: int
    exchange_frac: float | None = None
    """Share of the adapters' rate that an all-to-all was measured to reach; None: as is usual."""
    link_peers: int | None = None
    """Of a mesh, ranks that one is wired to; None: all others of the domain."""


def fabric_of(machine: Node | Cluster) -> Fabric:
    """The wires of a node, or of each node of a cluster; of several kinds the slowest links, and
    the slowest adapters."""
    nodes = [each for each, _ in machine.kinds] if isinstance(machine, Cluster) else [machine]
    node = min(nodes, key=lambda each: each.peer_gb_per_s)
    architecture = node.device.architecture or ""
    link = node.link.topology if node.link else PCIE
    outer = min(nodes, key=_nic_gb_per_s)
    return Fabric(
        link=link,
        link_gb_per_s=node.peer_gb_per_s,
        domain_ranks=node.link_domain_gpus or node.gpus,
        node_ranks=node.gpus,
        architecture=architecture,
        has_multicast=link == SWITCH and reduces_in_switch(architecture),
        network=outer.nic.network if outer.nic else None,
        node_nic_gb_per_s=_nic_gb_per_s(outer),
        nics=(outer.nics or 1) if outer.nic else 0,
        exchange_frac=outer.nic.exchange_frac if outer.nic else None,
        link_peers=node.link.peers if node.link else None,
    )


def _nic_gb_per_s(node: Node) -> float:
    return (node.nics or 1) * node.nic.gb_per_s if node.nic else 0.0


Texts = NDArray[np.str_]


@dataclass(frozen=True, kw_only=True)
class Calls:
    """One collective per row; `size_bytes` as nccl-tests define it.

    A domain is what links join, mostly a node.
    """

    op: Texts
    size_bytes: Floats
    ranks: Floats
    domains: Floats
    link: Texts
    link_gb_per_s: Floats
    """Per rank, those of its links together that lead to ranks of the call, one direction."""
    link_peers: Floats
    """Ranks over whose links that rate is split; 1 where any pair has all of it."""
    architecture: Texts
    has_multicast: Mask
    network: Texts
    """Empty where no adapter is known."""
    nic_gb_per_s: Floats
    """What the ranks of one domain together may send, one direction."""
    rank_nic_gb_per_s: Floats
    """What one rank alone may send."""
    exchange_frac: Floats
    """Share of the adapters' rate that an all-to-all was measured to reach; 0: as is usual."""
    in_network: Mask
    """Whether the network's switches may add up."""
    variant: Texts
    """`nccl`, `custom` or `custom_eager`."""

    def __len__(self) -> int:
        return len(self.op)

    @property
    def local(self) -> Floats:
        """Ranks per domain."""
        return self.ranks / self.domains

    @cached_property
    def networks(self) -> tuple[Texts, Ints]:
        """(the kinds of network, which of them each row has)."""
        return _kinds(self.network)

    @cached_property
    def architectures(self) -> tuple[Texts, Ints]:
        """(the generations, which of them each row has)."""
        return _kinds(self.architecture)

    @cached_property
    def links(self) -> tuple[Texts, Ints]:
        """(the kinds of link, which of them each row has)."""
        return _kinds(self.link)

    @cached_property
    def has_two_way_tree(self) -> Mask:
        """Whether two domains exchange halves, so that a tree sends each byte once (Hopper on)."""
        kinds, kind = self.architectures
        return np.array([reduces_in_switch(each) for each in kinds.tolist()], bool)[kind]

    @property
    def is_custom(self) -> Mask:
        """Whether kernels of a framework may run it."""
        return np.asarray(self.variant != NCCL, np.bool_)

    @property
    def is_remote(self) -> Mask:
        """Whether the network takes part."""
        return self.domains > 1


def _kinds(values: Texts) -> tuple[Texts, Ints]:
    kinds, kind = np.unique(values, return_inverse=True)
    return kinds, kind.reshape(-1).astype(np.int64)


def calls_of(rows: Rows, fabric: Fabric) -> Calls:
    """The collectives `rows` on `fabric`; a node's ranks take the adapters that are near them.

    Raises `ModelError` for dims that cannot be: fewer ranks than nodes, several domains without a
    network.
    """
    size, ranks, nodes, in_network, custom = (np.empty(len(rows)) for _ in range(5))
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        size[index], ranks[index], nodes[index], in_network[index], custom[index] = (
            dims["size_bytes"],
            dims["ranks"],
            np.maximum(dims["nodes"], 1.0),
            dims["in_network"],
            dims["custom"],
        )
    ranks = np.maximum(ranks, 1.0)
    bad = np.flatnonzero(nodes > ranks)
    if len(bad):
        row = bad[0]
        raise ModelError(
            f"{rows.op[row]} (row {row}): {ranks[row]:g} ranks do not fit on {nodes[row]:g} nodes"
        )
    per_node = ranks / nodes
    nodes_per_domain = max(1.0, fabric.domain_ranks / fabric.node_ranks)
    crowded = np.ceil(per_node / max(fabric.domain_ranks, 1))
    domains = np.maximum(np.ceil(nodes / nodes_per_domain), np.where(nodes == 1, crowded, 1.0))
    if fabric.network is None and (domains > 1).any():
        row = int(np.flatnonzero(domains > 1)[0])
        raise ModelError(
            f"{rows.op[row]} (row {row}): {ranks[row]:g} ranks need a network adapter "
            f"beyond {fabric.domain_ranks} linked devices; the hardware names none"
        )
    local = ranks / domains
    wired_gb_per_s, peers = wired(
        np.full(len(rows), fabric.link == MESH),
        np.full(len(rows), fabric.link_gb_per_s),
        local,
        np.full(len(rows), float(fabric.link_peers or max(fabric.domain_ranks - 1, 1))),
    )
    node_nic, one = _nic_rates(np.minimum(per_node, fabric.node_ranks), fabric)
    n = len(rows)
    return Calls(
        op=np.array(rows.op, np.str_),
        size_bytes=size,
        ranks=ranks,
        domains=domains,
        link=np.full(n, fabric.link),
        link_gb_per_s=wired_gb_per_s,
        link_peers=peers,
        architecture=np.full(n, fabric.architecture),
        has_multicast=np.full(n, fabric.has_multicast),
        network=np.full(n, fabric.network or ""),
        nic_gb_per_s=np.maximum(node_nic * nodes / domains, 1e-9),
        rank_nic_gb_per_s=np.maximum(one, 1e-9),
        exchange_frac=np.full(n, fabric.exchange_frac or 0.0),
        in_network=(in_network > 0) & (fabric.network == INFINIBAND),
        variant=np.where(custom > 0, CUSTOM, NCCL),
    )


def wired(
    is_mesh: Mask, link_gb_per_s: Floats, local: Floats, peers: Floats
) -> tuple[Floats, Floats]:
    """What `local` ranks of a domain have of each other's links, and over how many that is split.

    In a mesh of `peers` per rank, links to ranks that take no part are idle.
    """
    taking_part = np.clip(local - 1, 1.0, peers)
    share = np.where(is_mesh, taking_part / peers, 1.0)
    return link_gb_per_s * share, np.where(is_mesh, taking_part, 1.0)


def _nic_rates(node_ranks: Floats, fabric: Fabric) -> tuple[Floats, Floats]:
    """Of the adapters near `node_ranks` ranks of a node together, and near one rank."""
    if not fabric.nics:
        return np.zeros_like(node_ranks), np.zeros_like(node_ranks)
    each = fabric.node_nic_gb_per_s / fabric.nics
    near = np.clip(fabric.nics * node_ranks / fabric.node_ranks, 1.0, fabric.nics)
    one = each * np.clip(fabric.nics / fabric.node_ranks, min(1.0, 1.0 / fabric.node_ranks), None)
    alone = np.maximum(one, each * near / node_ranks)
    return each * near, alone


@dataclass(frozen=True)
class Codec:
    """How values are encoded before a collective and decoded after it."""

    name: str
    bytes_per_element: float
    bytes_per_row: float
    """Scale and bias that each row of the payload carries."""

    def wire_bytes(self, elements: Floats, row_elements: float) -> Floats:
        """Bytes of `elements` encoded, `row_elements` to a row."""
        return elements * (self.bytes_per_element + self.bytes_per_row / max(row_elements, 1.0))


CODECS = {
    codec.name: codec
    for codec in (
        Codec("fp32", 4.0, 0.0),
        Codec("fp16", 2.0, 0.0),
        Codec("bf16", 2.0, 0.0),
        Codec("fp8", 1.0, 0.0),
        Codec("int8", 1.0, 8.0),
        Codec("int4", 0.5, 4.0),
    )
}
"""By the name of the type on the wire; rowwise int8 carries fp32 scale and bias, int4 fp16.

Source: TorchRec's fbgemm_qcomm_codec and FBGEMM's fused rowwise formats.
"""


def codec(name: str) -> Codec:
    """The codec of that name; raises `ModelError` for another."""
    entry = CODECS.get(name)
    if entry is None:
        raise ModelError(f"codec {name!r}: expected one of {', '.join(CODECS)}")
    return entry


class CollectiveModel(Protocol):
    """Answers for collectives on any machine; whole columns at once."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`: of the transfer, from the arrival of the last rank."""
        ...

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        ...


COLLECTIVES: Registry[CollectiveModel] = Registry(
    "collective model", "perfmodel.network", "perfmodel.cost.collectives.calibrated"
)
"""By `collective/NAME`: `collective/heuristic`, …"""
