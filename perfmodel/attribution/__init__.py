"""Every idle microsecond and every microsecond of the critical path gets one cause."""

from perfmodel.attribution.breakdown import Breakdown, breakdown

__all__ = ["Breakdown", "breakdown"]
