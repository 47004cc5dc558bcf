"""What reading and writing rows beside the device takes: in host memory, on drives, in adapters."""

from perfmodel.tiers.model import TIERS, TierModel

__all__ = ["TIERS", "TierModel"]
