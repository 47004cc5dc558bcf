"""Hardware: devices, hosts, links and nodes as frozen values, read from TOML files.

The catalogue holds one file per part, each figure with its source; a user's own file may extend
any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.hardware.catalogue import cluster as cluster
    from perfmodel.hardware.catalogue import device as device
    from perfmodel.hardware.catalogue import devices as devices
    from perfmodel.hardware.catalogue import find as find
    from perfmodel.hardware.catalogue import from_driver_name as from_driver_name
    from perfmodel.hardware.catalogue import host as host
    from perfmodel.hardware.catalogue import load as load
    from perfmodel.hardware.catalogue import names as names
    from perfmodel.hardware.catalogue import node as node
    from perfmodel.hardware.catalogue import node_of as node_of
    from perfmodel.hardware.catalogue import parts_named as parts_named
    from perfmodel.hardware.parts import KINDS as KINDS
    from perfmodel.hardware.parts import Accelerator as Accelerator
    from perfmodel.hardware.parts import Cluster as Cluster
    from perfmodel.hardware.parts import Device as Device
    from perfmodel.hardware.parts import Host as Host
    from perfmodel.hardware.parts import Link as Link
    from perfmodel.hardware.parts import Nic as Nic
    from perfmodel.hardware.parts import Node as Node
    from perfmodel.hardware.parts import Part as Part
    from perfmodel.hardware.parts import Storage as Storage
    from perfmodel.hardware.parts import a_kind_of as a_kind_of
    from perfmodel.hardware.parts import kind_of as kind_of
    from perfmodel.hardware.schema import Figure as Figure
    from perfmodel.hardware.schema import figures as figures
    from perfmodel.hardware.settings import with_settings as with_settings

__getattr__, __dir__, __all__ = exports(__name__)
