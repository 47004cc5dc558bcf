"""Collectives as columns: what is sent, among whom, over which wires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Node
from perfmodel.hardware.catalogue import reduces_in_switch
from perfmodel.ops.rows import Rows

SWITCH, MESH, BRIDGE, PCIE = "switch", "mesh", "bridge", "pcie"
INFINIBAND = "infiniband"
MAX_RANKS = 1_000_000
IN_PLACE = ("all_reduce", "barrier", "broadcast", "reduce")
"""Whose result PyTorch writes over the input: NCCL launches nothing among one rank."""
Count = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
Rate = Annotated[float, Meta(ge=0.0, le=1e6)]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The wires of one machine: a domain is what the links join (a node, or a rack of them)."""

    link: str
    """`switch`, `mesh`, `bridge` or `pcie`."""
    link_gb_per_s: Rate
    """Per rank, all its links together, one direction."""
    domain_ranks: Count
    """How many ranks the links of one domain join."""
    node_ranks: Count
    """How many ranks share one node's network adapters."""
    architecture: str
    """The devices' generation, `hopper`; it decides on base latencies."""
    network: str | None
    """`infiniband roce slingshot efa tcp`; None where no adapter is known."""
    node_nic_gb_per_s: Rate
    """All adapters of one node together, one direction."""
    nics: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    exchange_frac: Annotated[float, Meta(ge=1e-3, le=1.0)] | None = None
    """Share of the adapters' rate that an all-to-all was measured to reach; None: as is usual."""
    link_peers: Count | None = None
    """Of a mesh, ranks that one is wired to; None: all others of the domain."""
    memory_gb_per_s: Rate = 0.0
    """Reached by a rank alone, which copies its input; 0 where none is asked of."""


def fabric_of(machine: Node | Cluster) -> Fabric:
    """The wires of a node, or of each node of a cluster."""
    node = machine.node if isinstance(machine, Cluster) else machine
    adapter = node.nic.gb_per_s if node.nic else 0.0
    # What a device sends passes its own bus, which carries at least the adapter beside it.
    by_bus = node.gpus * max(node.device.host_gb_per_s, adapter)
    return Fabric(
        link=node.link.topology if node.link else PCIE,
        link_gb_per_s=node.peer_gb_per_s,
        domain_ranks=node.link_domain_gpus or node.gpus,
        node_ranks=node.gpus,
        architecture=node.device.architecture or "",
        network=node.nic.network if node.nic else None,
        node_nic_gb_per_s=min((node.nics or 1) * adapter, by_bus),
        nics=(node.nics or 1) if node.nic else 0,
        exchange_frac=node.nic.exchange_frac if node.nic else None,
        link_peers=node.link.peers if node.link else None,
        memory_gb_per_s=node.device.stream_gb_per_s,
    )


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
    memory_gb_per_s: Floats
    """What a rank alone copies its input with, reads and writes together."""
    architecture: Texts
    has_multicast: Mask
    """Whether the switch reduces and copies by itself (NVLink SHARP)."""
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

    def __len__(self) -> int:
        return len(self.op)

    @property
    def local(self) -> Floats:
        """Ranks per domain."""
        return self.ranks / self.domains

    @cached_property
    def _kinds(self) -> dict[str, tuple[Texts, Ints]]:
        """The kinds of network, generation and link, and which of them each row has."""
        columns = {name: getattr(self, name) for name in ("network", "architecture", "link")}
        return {name: np.unique(each, return_inverse=True) for name, each in columns.items()}

    def by_kind(self, name: str, number: Callable[[str], float]) -> Floats:
        """`number` of each row's `network`, `architecture` or `link`, computed once per kind."""
        kinds, kind = self._kinds[name]
        return np.array([number(each) for each in kinds.tolist()], np.float64)[kind.reshape(-1)]

    def take(self, index: Ints) -> Calls:
        """The calls at `index`, in that order."""
        return Calls(**{each.name: getattr(self, each.name)[index] for each in fields(self)})

    @property
    def is_empty(self) -> Mask:
        """Whether one rank has its result already; other ops have it copied from their input."""
        return np.isin(self.op, IN_PLACE) & np.equal(self.ranks, 1)

    @property
    def is_copy(self) -> Mask:
        """Whether one rank copies its input within its memory."""
        return np.equal(self.ranks, 1) & ~self.is_empty

    @property
    def is_remote(self) -> Mask:
        """Whether the network takes part."""
        return self.domains > 1


def calls_of(rows: Rows, fabric: Fabric) -> Calls:
    """The collectives `rows` on `fabric`; a node's ranks take the adapters that are near them.

    Raises `ModelError` for dims that cannot be: fewer ranks than nodes, several domains without a
    network.
    """
    names = ("size_bytes", "ranks", "nodes", "in_network")
    columns = np.empty((len(names), len(rows)))
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        columns[:, index] = [dims[name] for name in names]
    size, ranks, nodes, in_network = columns
    ranks, nodes = np.maximum(ranks, 1.0), np.maximum(nodes, 1.0)
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
    n, local = len(rows), ranks / domains
    has_multicast = fabric.link == SWITCH and reduces_in_switch(fabric.architecture)
    # In a mesh, links to ranks that take no part are idle.
    wired = float(fabric.link_peers or max(fabric.domain_ranks - 1, 1))
    peers = np.clip(local - 1, 1.0, wired) if fabric.link == MESH else np.ones(n)
    link_share = peers / wired if fabric.link == MESH else peers
    # What the adapters near the ranks of a node carry together, and those near one rank.
    node_ranks, nics = np.minimum(per_node, fabric.node_ranks), max(fabric.nics, 1)
    near = np.clip(fabric.nics * node_ranks / fabric.node_ranks, 1.0, nics)
    node_nic = fabric.node_nic_gb_per_s / nics * near
    one = np.maximum(fabric.node_nic_gb_per_s / fabric.node_ranks, node_nic / node_ranks)
    return Calls(
        op=np.array(rows.op, np.str_),
        size_bytes=size,
        ranks=ranks,
        domains=domains,
        link=np.full(n, fabric.link),
        link_gb_per_s=fabric.link_gb_per_s * link_share,
        link_peers=peers,
        memory_gb_per_s=np.full(n, max(fabric.memory_gb_per_s, 1e-9)),
        architecture=np.full(n, fabric.architecture),
        has_multicast=np.full(n, has_multicast),
        network=np.full(n, fabric.network or ""),
        nic_gb_per_s=np.maximum(node_nic * nodes / domains, 1e-9),
        rank_nic_gb_per_s=np.maximum(one, 1e-9),
        exchange_frac=np.full(n, fabric.exchange_frac or 0.0),
        in_network=(in_network > 0) & (fabric.network == INFINIBAND),
    )


def place_collectives(rows: Rows, machine: Cluster) -> Rows:
    """`rows` with their collectives among as many nodes as their ranks fill, unless they say."""
    if "ranks" not in rows.dims or machine.nodes == 1:
        return rows
    nodes = np.ceil(rows.dims["ranks"] / machine.node.gpus).clip(1, machine.nodes)
    given = rows.dims.get("nodes", np.full(len(rows), np.nan))
    return replace(rows, dims={**rows.dims, "nodes": np.where(np.isnan(given), nodes, given)})
