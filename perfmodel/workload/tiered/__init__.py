"""How a step reaches the rows of tables in each tier, one file per tier and cache."""

from perfmodel.workload.tiered.source import (
    TIERED,
    Group,
    Shared,
    Source,
    groups_of,
    reached_by,
    way_home,
)

__all__ = ["TIERED", "Group", "Shared", "Source", "groups_of", "reached_by", "way_home"]
