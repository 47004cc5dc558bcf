"""Memories that hold rows of embedding tables, and places of caches in them: one registry each.

A plug-in adds its own by the entry points `perfmodel.memories` (a `Memory`) and
`perfmodel.cache_places` (the name of a memory). How a step reads rows there is a way to rows
(`perfmodel.workload.tiered`), by ops whose cost a tier model says (`perfmodel.cost.tiers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.registry import Registry

if TYPE_CHECKING:
    from perfmodel.hardware import Node

HBM, HOST, STORAGE, NIC = "hbm", "host", "storage", "nic"
EXPANSION = "expansion"


@dataclass(frozen=True)
class Memory:
    """A memory that holds rows.

    `label` names it in messages. `capacity_bytes` of a node's (of a rank's, if `is_of_rank`): None
    where the catalogue does not say, 0 where a machine has none. `caches` are how many of one name
    it holds. Without `holds_tables` it has room for caches only.
    """

    label: str
    capacity_bytes: Callable[[Node], float | None]
    caches: Callable[[Node], int]
    is_of_rank: bool = False
    holds_tables: bool = True


MEMORIES: Registry[Memory] = Registry("memory of rows", "perfmodel.memories")
"""By `tier` of a table's placement."""
CACHE_PLACES: Registry[str] = Registry("place of a cache", "perfmodel.cache_places")
"""By `at` of a cache: the memory that holds it."""


def _drives_bytes(node: Node) -> float | None:
    if node.storage is None:
        return 0.0
    each = node.storage.capacity_bytes
    return None if each is None else each * (node.drives or 1)


def _adapters_bytes(node: Node) -> float | None:
    if node.nic is None:
        return 0.0
    each = node.nic.memory_bytes
    return None if each is None else each * (node.nics or 1)


MEMORIES.register(HBM)(
    Memory("device memory", lambda node: node.device.hbm_bytes, lambda _: 1, is_of_rank=True)
)
MEMORIES.register(HOST)(
    Memory("host memory", lambda node: node.host_memory_bytes, lambda node: node.gpus)
)
MEMORIES.register(EXPANSION)(
    Memory(
        "expansion memory",
        lambda node: node.expansion.capacity_bytes if node.expansion else 0.0,
        lambda node: node.gpus,
    )
)
MEMORIES.register(STORAGE)(Memory("drives", _drives_bytes, lambda node: node.gpus))
MEMORIES.register(NIC)(
    Memory("memory of adapters", _adapters_bytes, lambda node: node.nics or 1, holds_tables=False)
)
CACHE_PLACES.register(HBM)(HBM)
CACHE_PLACES.register(HOST)(HOST)
CACHE_PLACES.register("nic_local", "nic_remote")(NIC)


def all_memories() -> tuple[str, ...]:
    """Their names, the fastest first, those of plug-ins last."""
    return tuple(dict.fromkeys((HBM, HOST, EXPANSION, STORAGE, NIC, *MEMORIES)))
