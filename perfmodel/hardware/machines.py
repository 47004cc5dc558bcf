"""Whole machines: the node that a device sits in, and several nodes as one cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from perfmodel.errors import HardwareError
from perfmodel.hardware.catalogue import expect, host, load
from perfmodel.hardware.parts import Cluster, Device, Node, Part

PLAIN_HOST = "generic-server"
MAX_NODES = 100_000


def node(given: str | Path | Part) -> Node:
    """The node of that name or file, or the part itself; of a device the one it usually sits in.

    Raises `HardwareError`, also for a part that is neither.
    """
    part = given if isinstance(given, Part) else load(given)
    return node_of(part) if isinstance(part, Device) else expect(part, Node)


def node_of(device: Device) -> Node:
    """The node that `device` usually sits in, with `device` and its links, and named after it.

    Where the catalogue has none: one device on its usual host, else on a plain one.
    """
    if device.usual_node is None:
        hangs_on = host(device.usual_host or PLAIN_HOST)
        return Node(name=device.name, device=device, gpus=1, host=hangs_on, sockets=1)
    usual = expect(load(device.usual_node, "node"), Node)
    link = usual.link and replace(usual.link, gb_per_s=device.peer_gb_per_s)
    return replace(usual, name=device.name, device=device, link=link)


def cluster(given: str | Path | Part, nodes: int | None = None) -> Cluster:
    """`nodes` equal nodes (1 unless the part is a cluster, whose number it replaces).

    `given` is a cluster, a node or a device by name or file, or the part itself. Raises
    `HardwareError`, also for a number of nodes that cannot be.
    """
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise HardwareError(f"nodes: expected a whole number from 1 to {MAX_NODES}, got {nodes}")
    part = given if isinstance(given, Part) else load(given)
    if isinstance(part, Cluster):
        return part if nodes is None else replace(part, nodes=nodes)
    one = node(part)
    source = MappingProxyType({"nodes": "given"})
    return Cluster(name=one.name, maker=one.maker, node=one, nodes=nodes or 1, sources=source)
