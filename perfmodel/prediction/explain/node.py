"""One node of a prediction: which one a user means, and why it takes what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np

from perfmodel.arrays import Ints
from perfmodel.errors import UsageError
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind
from perfmodel.prediction.explain.reason import Explained, Explainer, Start
from perfmodel.prediction.what_if import node_text
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.schedule import Timeline, deciding_edges
from perfmodel.trace.columns import NONE

MAX_SUGGESTIONS = 4
"""Names that are offered where none fits."""
SHOWN = 60
"""Characters of a name in a message."""


def find_node(timeline: Timeline, ops: Sequence[str], text: str) -> tuple[int, int]:
    """(node, how many nodes `text` matches): a number, else a name, of which the longest counts.

    A name is an operator, a kernel or a label: whole; else without its namespace (`mm`); else a
    part of it, whatever the case. Nodes that start within a step come before others. Raises
    `UsageError` that names the nearest.
    """
    graph = timeline.graph
    if text.strip().isdecimal():
        number = int(text)
        if number >= len(graph):
            raise UsageError(f"--explain {text}: nodes are numbered from 0 to {len(graph) - 1}")
        return number, 1
    names = [{graph.labels[node], ops[node], node_text(graph, node)} for node in range(len(graph))]
    known = set().union(*names)
    fitting = next(filter(None, ({n for n in known if fits(n, text)} for fits in _FITS)), None)
    if not fitting or not text:
        near = sorted(filter(None, known))
        near = get_close_matches(text, near, n=MAX_SUGGESTIONS, cutoff=0.3) or near
        nearest = ", ".join(name[:SHOWN] for name in near[:MAX_SUGGESTIONS])
        raise UsageError(f"--explain {text[:SHOWN]!r}: no such node; nearest: {nearest}")
    rows = np.flatnonzero([not own.isdisjoint(fitting) for own in names])
    inside = rows[marks_of(timeline)[rows] >= 0]
    rows = inside if len(inside) else rows
    taken = (timeline.end_us - timeline.start_us)[rows]
    return int(rows[int(np.argmax(taken))]), len(rows)


_FITS: tuple[Callable[[str, str], bool], ...] = (
    lambda name, text: name == text,
    lambda name, text: name.rpartition("::")[2] == text,
    lambda name, text: text.lower() in name.lower(),
)
"""How a name may fit what was asked for, the closest first."""


def marks_of(timeline: Timeline) -> Ints:
    """Per node the row of the graph's marks whose step it starts in, or -1."""
    graph, marks = timeline.graph, timeline.graph.marks
    begun, over = timeline.end_us[marks.start], timeline.end_us[marks.end]
    mark_of = np.full(len(graph), -1, np.int64)
    for mark, rank in enumerate(marks.rank.tolist()):
        own = graph.nodes_.rank == rank
        own &= (timeline.start_us >= begun[mark]) & (timeline.start_us < over[mark])
        mark_of[own & (mark_of < 0)] = mark
    return mark_of


def explain(
    timeline: Timeline, explainer: Explainer | None, hardware: str, mode: str, asked: str
) -> Explained:
    """The node of a predicted timeline that `asked` names (`find_node`), and why it takes what it
    takes. Raises `UsageError` where there is no such node, or nothing is kept of how it was timed.
    """
    if explainer is None:
        raise UsageError(f"{hardware}: nothing is kept of how its nodes were timed")
    graph, ops = timeline.graph, explainer.ops()
    node, matches = find_node(timeline, ops, asked)
    mark = int(marks_of(timeline)[node])
    begun = 0.0 if mark < 0 else float(timeline.end_us[graph.marks.start[mark]])
    path = () if mark < 0 else critical_path(timeline, mark)
    slack = float(timeline.slack_us[node])
    deciding, start = deciding_edges(timeline), None
    before = int(deciding.node[node])
    if before != NONE:
        edge = EdgeKind(int(deciding.kind[node]))
        start = Start(
            before,
            graph.labels[before],
            edge.name.lower(),
            float(deciding.lag_us[node]),
            explainer.lag_source(edge),
        )
    return Explained(
        asked=asked,
        matches=matches,
        hardware=hardware,
        mode=mode,
        node=node,
        label=graph.labels[node],
        op=ops[node],
        kind=NodeKind(int(graph.nodes_.kind[node])).name.lower(),
        cause=Cause(int(graph.nodes_.cause[node])).name.lower(),
        rank=int(graph.nodes_.rank[node]),
        resource=graph.resources[int(graph.nodes_.resource[node])],
        step=None if mark < 0 else graph.marks.name[mark],
        start_us=float(timeline.start_us[node]) - begun,
        duration_us=float(timeline.end_us[node] - timeline.start_us[node]),
        slack_us=max(slack, 0.0) if np.isfinite(slack) else None,
        on_critical_path=any(piece.node == node and piece.edge == NONE for piece in path),
        start=start,
        reason=explainer.reason(node),
    )
