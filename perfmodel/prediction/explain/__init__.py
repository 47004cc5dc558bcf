"""Why a node of a prediction takes what it takes: model, formula, hardware figures and sources."""

from __future__ import annotations

from perfmodel.prediction.explain.explained import Explained, explain
from perfmodel.prediction.explain.reason import Grounds, Reason

__all__ = ["Explained", "Grounds", "Reason", "explain"]
