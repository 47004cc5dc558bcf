"""Step boundaries as nodes of zero length, behind what precedes them."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.host import Pieces
from perfmodel.graph.kinds import Cause, NodeKind, Scope
from perfmodel.graph.types import Nodes, StepMarks
from perfmodel.trace.columns import NONE, Ints, RankTrace
from perfmodel.trace.link import Links, runs
from perfmodel.trace.steps import MAIN


def with_marks(
    rank: RankTrace, links: Links, pieces: Pieces, last_node: Ints, nodes: Nodes, first_device: int
) -> tuple[StepMarks, Nodes, tuple[Ints, Ints]]:
    """Append a mark at each step start and end; the edges into them are (source, target).

    `last_node` is the node that a piece ends with (itself, or its return). A step's bounds follow
    the piece of the main thread that ends there, or the call across it; the end of a window
    follows everything.
    """
    steps = links.steps
    ends = _ends(links, pieces, last_node, nodes, first_device)
    main = np.flatnonzero(np.isin(pieces.thread, [t for t, r in links.roles.items() if r == MAIN]))
    when = np.stack([steps.start_us, steps.end_us], axis=1).reshape(-1)
    first_mark = len(nodes)
    sources: list[Ints] = []
    start_us = pieces.start_us[main]
    for position, time in enumerate(when):
        if steps.is_window and position % 2:
            sources.append(ends)
            continue
        at = int(np.searchsorted(start_us, time, side="left")) - 1
        begun = at >= 0 and pieces.end_us[main[at]] >= time
        sources.append(last_node[main[at : at + 1]] if begun else np.zeros(0, np.int64))
    counts = np.array([len(found) for found in sources], np.int64)
    release = np.where(counts > 0, -np.inf, when)

    def grow(column: np.ndarray, value: object) -> np.ndarray:
        return np.concatenate([column, np.broadcast_to(np.asarray(value, column.dtype), len(when))])

    grown = Nodes(
        kind=grow(nodes.kind, NodeKind.MARK),
        cause=grow(nodes.cause, Cause.END_OF_STEP),
        scope=grow(nodes.scope, Scope.NONE),
        rank=grow(nodes.rank, rank.rank),
        resource=grow(nodes.resource, 0),
        row=grow(nodes.row, NONE),
        start_us=grow(nodes.start_us, when),
        duration_us=grow(nodes.duration_us, 0.0),
        release_us=grow(nodes.release_us, release),
    )
    ids = np.arange(first_mark, first_mark + len(when))
    marks = StepMarks(np.full(len(steps), rank.rank), steps.names, ids[::2], ids[1::2])
    source = np.concatenate([*sources, np.zeros(0, np.int64)])
    return marks, grown, (source, np.repeat(ids, counts))


def _ends(links: Links, pieces: Pieces, last_node: Ints, nodes: Nodes, first_device: int) -> Ints:
    """The last node of every thread and the latest of every stream."""
    threads = [last_node[high - 1] for _, high in runs(pieces.thread)]
    device = np.arange(first_device, first_device + len(links.device_rows))
    order = device[np.lexsort((nodes.end_us[device], nodes.resource[device]))]
    streams = [order[high - 1] for _, high in runs(nodes.resource[order])]
    return np.array([*threads, *streams], np.int64)
