"""Published co-designs, one file each: edits of where tables are and how a step is laid out.

A design by its name is `DESIGNS["neo"]`, a class whose arguments are its settings; what only some
of them have beside that loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.designs.deployment import DESIGNS, Deployment, Design, Phase, deployment_of
from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.designs.device_caches import frequency_aware_bytes
    from perfmodel.designs.hits import answers_spared, tier_hits
    from perfmodel.designs.hot_row_choice import choose_hot_rows
    from perfmodel.designs.low_precision import ROUNDING_ERRORS, hosts_needed
    from perfmodel.designs.software_memory import FleetHost, UserSide, query_us, saving_frac

__all__ = [
    "DESIGNS",
    "ROUNDING_ERRORS",
    "Deployment",
    "Design",
    "FleetHost",
    "Phase",
    "UserSide",
    "answers_spared",
    "choose_hot_rows",
    "deployment_of",
    "frequency_aware_bytes",
    "hosts_needed",
    "query_us",
    "saving_frac",
    "tier_hits",
]


__getattr__ = exports(
    __name__,
    {
        "ROUNDING_ERRORS": "perfmodel.designs.low_precision",
        "FleetHost": "perfmodel.designs.software_memory",
        "UserSide": "perfmodel.designs.software_memory",
        "answers_spared": "perfmodel.designs.hits",
        "choose_hot_rows": "perfmodel.designs.hot_row_choice",
        "frequency_aware_bytes": "perfmodel.designs.device_caches",
        "hosts_needed": "perfmodel.designs.low_precision",
        "query_us": "perfmodel.designs.software_memory",
        "saving_frac": "perfmodel.designs.software_memory",
        "tier_hits": "perfmodel.designs.hits",
    },
)
