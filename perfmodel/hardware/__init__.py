"""Hardware: devices, hosts, links and nodes as frozen values, read from TOML files.

The catalogue holds one file per part, each figure with its source; a user's own file may extend
any of them. Standard library only.
"""

from __future__ import annotations

from perfmodel.hardware.catalogue import (
    Figure,
    cluster,
    device,
    devices,
    figures,
    find,
    frame,
    from_driver_name,
    host,
    load,
    names,
    node,
    node_of,
    parts_named,
)
from perfmodel.hardware.parts import (
    KINDS,
    Accelerator,
    Cluster,
    Device,
    Host,
    Link,
    Nic,
    Node,
    Part,
    Storage,
    a_kind_of,
    kind_of,
)
from perfmodel.hardware.settings import with_settings

__all__ = [
    "KINDS",
    "Accelerator",
    "Cluster",
    "Device",
    "Figure",
    "Host",
    "Link",
    "Nic",
    "Node",
    "Part",
    "Storage",
    "a_kind_of",
    "cluster",
    "device",
    "devices",
    "figures",
    "find",
    "frame",
    "from_driver_name",
    "host",
    "kind_of",
    "load",
    "names",
    "node",
    "node_of",
    "parts_named",
    "with_settings",
]
