"""Bytes per rank: what stays resident, what lives for a while, and whether it fits."""

from perfmodel.memory.use import MemoryUse, memory_use, require_fit

__all__ = ["MemoryUse", "memory_use", "require_fit"]
