"""What an edit gives back."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.graph.ops import OpGraph


class Edited(NamedTuple):
    """The graph after an edit, and what of it could not be done, in words."""

    graph: OpGraph
    undone: tuple[str, ...] = ()
