"""Which predecessor decided when each node could start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.graph.kinds import EdgeKind
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE, Floats, Ints


@dataclass(frozen=True)
class Binding:
    """Per node: the predecessor that set it free last, and kind (or -1) and lag of the edge."""

    node: Ints
    kind: Ints
    lag_us: Floats


def bind(timeline: Timeline) -> Binding:
    """The latest edge into each node of a timeline.

    Where edges tie, one that crosses threads or streams wins over program order, so that a path
    shows what was waited for.
    """
    graph, edges = timeline.graph, timeline.graph.edges_
    ready = edges.ready_us(timeline.start_us, timeline.end_us - timeline.start_us)
    order = np.lexsort((edges.kind != EdgeKind.PROGRAM, ready, edges.target))
    target = edges.target[order]
    last = np.flatnonzero(np.append(np.diff(target) != 0, True)) if len(target) else target
    node = np.full(len(graph), NONE, np.int32)
    kind = np.full(len(graph), NONE, np.int8)
    lag_us = np.zeros(len(graph))
    lag_us[target[last]] = edges.lag_us[order][last]
    node[target[last]] = edges.source[order][last]
    kind[target[last]] = edges.kind[order][last]
    held = np.flatnonzero(node >= 0)
    fixed = held[graph.nodes_.release_us[held] > ready[order][last]]
    node[fixed] = kind[fixed] = NONE
    return Binding(node, kind, lag_us)
