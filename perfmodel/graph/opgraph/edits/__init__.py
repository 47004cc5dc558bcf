"""Edits of op graphs: pure functions from a graph to another, and what could not be done."""

from __future__ import annotations

from perfmodel.graph.opgraph.edits.batch import rebatch
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.opgraph.edits.fuse import fuse
from perfmodel.graph.opgraph.edits.launch import cuda_graphs
from perfmodel.graph.opgraph.edits.optimizers import optimizer
from perfmodel.graph.opgraph.edits.precision import cast
from perfmodel.graph.opgraph.edits.structure import move, remove

__all__ = ["Edited", "cast", "cuda_graphs", "fuse", "move", "optimizer", "rebatch", "remove"]
