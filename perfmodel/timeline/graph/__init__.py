"""The execution graph of a trace: what ran on which resource, and what it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.timeline.graph.build import build_rank as build_rank
    from perfmodel.timeline.graph.kinds import Cause as Cause
    from perfmodel.timeline.graph.merge import build_graph as build_graph
    from perfmodel.timeline.graph.types import ExecutionGraph as ExecutionGraph

__getattr__, __dir__, __all__ = exports(__name__)
