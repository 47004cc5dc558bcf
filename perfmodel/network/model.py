"""The contract of every collective model, and where models register."""

from __future__ import annotations

from typing import Protocol

from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.network.calls import Calls
from perfmodel.registry import Registry


class CollectiveModel(Protocol):
    """Answers for collectives on any machine; whole columns at once."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`: of the transfer, from the arrival of the last rank."""
        ...

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        ...


COLLECTIVES: Registry[CollectiveModel] = Registry(
    "collective model", "perfmodel.network", "perfmodel.network.models"
)
"""By `collective/NAME`: `collective/heuristic`, …"""
