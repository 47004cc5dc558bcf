"""Times of reading and writing rows outside the device: host memory, drives, adapters."""

from __future__ import annotations

from perfmodel.cost.contract import TIERS, CostModel

__all__ = [
    "TIERS",
    "CostModel",
]
