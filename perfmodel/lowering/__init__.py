"""From ops to what they become on a target: launches, kernels, copies, collectives, waits."""

from __future__ import annotations

from perfmodel.lowering.lower import Lowered, lower
from perfmodel.lowering.piece import LOWERINGS, Piece

__all__ = ["LOWERINGS", "Lowered", "Piece", "lower"]
