"""The contract of every model of a memory tier, and where models register."""

from __future__ import annotations

from typing import Protocol

from perfmodel.hardware import Cluster
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.registry import Registry


class TierModel(Protocol):
    """Answers for every op of one family, vectorised over rows: what one rank's op takes while all
    ranks of its node do the same."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        """Durations of `rows` on a node of `machine`. Raises `ModelError` on impossible rows."""

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        """Why each row takes what it takes."""


TIERS: Registry[TierModel] = Registry("memory tier", "perfmodel.tiers", "perfmodel.tiers")
"""By the family of their ops: `host_memory`, …"""
