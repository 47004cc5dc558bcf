"""`fuse`: several ops as one, by kind."""

from __future__ import annotations

from perfmodel.errors import WorkloadError
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.opgraph.edits.elementwise import fuse_elementwise
from perfmodel.graph.opgraph.edits.tables import fuse_tables
from perfmodel.graph.ops import OpGraph

KINDS = {"embeddings": fuse_tables, "elementwise": fuse_elementwise}


def fuse(graph: OpGraph, kind: str) -> Edited:
    """`graph` with its `embeddings` (lookups of all tables) or `elementwise` chains fused.

    Raises `WorkloadError` for another kind.
    """
    if kind not in KINDS:
        raise WorkloadError(f"cannot fuse {kind!r}; one of {', '.join(KINDS)}")
    return KINDS[kind](graph)
