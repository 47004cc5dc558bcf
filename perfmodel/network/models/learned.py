"""Collectives by the shipped fit: the heuristic, corrected by what published curves showed."""

from __future__ import annotations

from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.network.calls import Calls
from perfmodel.network.model import COLLECTIVES
from perfmodel.network.store import NAME, shipped


class Shipped:
    """The shipped model, read when it is first asked."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`."""
        return shipped().estimate(calls)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        return shipped().explain(calls)


COLLECTIVES.register(NAME)(Shipped())
