"""Why a node of a prediction takes what it takes: model, formula, hardware figures and sources."""

from __future__ import annotations

from perfmodel.prediction.explain.node import explain
from perfmodel.prediction.explain.reason import Explained, Explainer, Reason

__all__ = ["Explained", "Explainer", "Reason", "explain"]
