"""What reading and writing rows beside the device takes: in host memory, on drives, in adapters."""

from __future__ import annotations

from perfmodel.cost.contract import TIERS, CostModel

__all__ = [
    "TIERS",
    "CostModel",
]
