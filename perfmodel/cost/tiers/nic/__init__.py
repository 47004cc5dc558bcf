"""Rows in the memory of network adapters: what a cache there finds, and what reading it takes."""

from __future__ import annotations

from perfmodel.cost.tiers.nic.cache import (
    NIC_CACHES,
    NicCacheModel,
    NicHits,
    NicLoad,
    NicTable,
    nic_hits,
)
from perfmodel.cost.tiers.nic.engine import NIC_COSTS, NicMemory, StepChange

__all__ = [
    "NIC_CACHES",
    "NIC_COSTS",
    "NicCacheModel",
    "NicHits",
    "NicLoad",
    "NicMemory",
    "NicTable",
    "StepChange",
    "nic_hits",
]
