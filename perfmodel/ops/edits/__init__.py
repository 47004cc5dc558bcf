"""Edits of op graphs: pure functions from a graph to another, and what could not be done."""

from __future__ import annotations

from perfmodel.ops.edits.batch import rebatch
from perfmodel.ops.edits.named import Edited, cast, cuda_graphs, remove

__all__ = ["Edited", "cast", "cuda_graphs", "rebatch", "remove"]
