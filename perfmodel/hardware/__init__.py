"""Hardware: devices, hosts, links and nodes as frozen values, read from TOML files.

The catalogue holds one file per part, each figure with its source; a user's own file may extend
any of them. Standard library only.
"""

from __future__ import annotations

from perfmodel.hardware.catalogue import (
    Figure,
    device,
    devices,
    figures,
    from_driver_name,
    host,
    load,
    names,
    node,
    node_of,
)
from perfmodel.hardware.parts import (
    KINDS,
    Cluster,
    Device,
    Host,
    Link,
    Nic,
    Node,
    Part,
    Storage,
    kind_of,
)

__all__ = [
    "KINDS",
    "Cluster",
    "Device",
    "Figure",
    "Host",
    "Link",
    "Nic",
    "Node",
    "Part",
    "Storage",
    "device",
    "devices",
    "figures",
    "from_driver_name",
    "host",
    "kind_of",
    "load",
    "names",
    "node",
    "node_of",
]
