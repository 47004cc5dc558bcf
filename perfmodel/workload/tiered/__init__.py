"""How a step reaches the rows of tables in each tier, one file per tier and cache."""

from __future__ import annotations

from perfmodel.workload.tiered.source import (
    TIERED,
    Group,
    Shared,
    Source,
    groups_of,
    output_route,
    source_of,
)

__all__ = ["TIERED", "Group", "Shared", "Source", "groups_of", "output_route", "source_of"]
