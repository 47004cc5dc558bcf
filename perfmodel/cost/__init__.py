"""What one kernel, copy or lookup takes on one device: models behind one contract.

The names that load here on first use are what drives of rows can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.cost.tiers.drives import (
        least_hit_frac,
        read_amplification,
        read_iops,
        read_latency_us,
        reads_per_s,
        updates_per_day,
    )

__all__ = [
    "least_hit_frac",
    "read_amplification",
    "read_iops",
    "read_latency_us",
    "reads_per_s",
    "updates_per_day",
]


__getattr__ = exports(__name__, dict.fromkeys(__all__, "perfmodel.cost.tiers.drives"))
