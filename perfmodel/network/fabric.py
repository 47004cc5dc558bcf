"""What joins the ranks: the links of a domain, and the network between domains."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.hardware import Cluster, Node

SWITCH, MESH, BRIDGE, PCIE = "switch", "mesh", "bridge", "pcie"
INFINIBAND = "infiniband"
MULTICAST = ("hopper", "blackwell")


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
    """The wires of a node, or of each node of a cluster."""
    node = machine.node if isinstance(machine, Cluster) else machine
    architecture = node.device.architecture or ""
    link = node.link.topology if node.link else PCIE
    nics = (node.nics or 1) if node.nic else 0
    return Fabric(
        link=link,
        link_gb_per_s=node.peer_gb_per_s,
        domain_ranks=node.link_domain_gpus or node.gpus,
        node_ranks=node.gpus,
        architecture=architecture,
        has_multicast=link == SWITCH and architecture in MULTICAST,
        network=node.nic.network if node.nic else None,
        node_nic_gb_per_s=nics * node.nic.gb_per_s if node.nic else 0.0,
        nics=nics,
        exchange_frac=node.nic.exchange_frac if node.nic else None,
        link_peers=node.link.peers if node.link else None,
    )
