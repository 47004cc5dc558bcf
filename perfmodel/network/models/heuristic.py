"""Collectives from figures of the hardware alone."""

from __future__ import annotations

from perfmodel.network.heuristic import Heuristic
from perfmodel.network.model import COLLECTIVES

COLLECTIVES.register("collective/heuristic")(Heuristic("collective/heuristic"))
