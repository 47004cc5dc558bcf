"""Rows in the memory of network adapters: what a cache there finds, and what reading it takes."""

from __future__ import annotations

from perfmodel.cost.tiers.nic.cache import (
    NIC_CACHES,
    NicCacheModel,
    NicFound,
    NicLoad,
    NicTable,
    found_in,
)
from perfmodel.cost.tiers.nic.engine import NicMemory

__all__ = [
    "NIC_CACHES",
    "NicCacheModel",
    "NicFound",
    "NicLoad",
    "NicMemory",
    "NicTable",
    "found_in",
]
