"""What one kernel, copy or lookup takes on one device: models behind one contract.

The names that load here on first use are what drives of rows can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.cost.tiers.drives import read_amplification as read_amplification
    from perfmodel.cost.tiers.drives import read_iops as read_iops
    from perfmodel.cost.tiers.drives import read_latency_us as read_latency_us
    from perfmodel.cost.tiers.drives import reads_per_s as reads_per_s

__getattr__, __dir__, __all__ = exports(__name__)
