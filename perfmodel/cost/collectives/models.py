"""The registered models of collectives: the heuristic, and the shipped fit that corrects it."""

from __future__ import annotations

from perfmodel.cost.collectives.calls import COLLECTIVES, Calls
from perfmodel.cost.collectives.heuristic import Heuristic
from perfmodel.cost.collectives.store import NAME, shipped
from perfmodel.cost.contract import Estimate, Explanation

COLLECTIVES.register("collective/heuristic")(Heuristic("collective/heuristic"))


class Shipped:
    """The shipped model, read when it is first asked."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`."""
        return shipped().estimate(calls)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        return shipped().explain(calls)


COLLECTIVES.register(NAME)(Shipped())
