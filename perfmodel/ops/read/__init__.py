"""Op graphs: what a program does, from execution traces, profiles with shapes, or both."""

from __future__ import annotations

from perfmodel.ops.read.execution_trace import op_graph

__all__ = ["op_graph"]
