"""Edits of op graphs: pure functions from a graph to another, and what could not be done."""

from __future__ import annotations

from perfmodel.graph.opgraph.edits.batch import rebatch
from perfmodel.graph.opgraph.edits.edited import Edited

__all__ = ["Edited", "rebatch"]
