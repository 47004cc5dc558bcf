"""On which streams a profile's ops ran, and which waited for which of another stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from perfmodel.graph.build import build_rank
from perfmodel.graph.kinds import EdgeKind
from perfmodel.graph.ops import NO_OP, OpGraph
from perfmodel.lowering.arguments import STREAM
from perfmodel.lowering.observed import MIN_RECORDED_FRAC, launched_by, main_stream
from perfmodel.trace.columns import Ints, RankTrace
from perfmodel.trace.link import Links

COMPUTE = "compute"
"""The stream that most of the device's work ran on."""
WAITS = (EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE)


def with_streams(graph: OpGraph, rank: RankTrace, links: Links) -> OpGraph:
    """`graph` with the stream of each op that launched something (attribute `stream`), and with
    `waits` between ops of different streams, as the measured graph has them.

    An op that launched nothing itself takes the stream of its caller, or that of all its calls.
    Only for graphs of a profile whose kernels were recorded; others are returned as they are.
    """
    if not len(links.device_rows) or links.recorded_frac < MIN_RECORDED_FRAC:
        return graph
    op = launched_by(graph, rank, links)
    streams = _streams(graph, rank, links, op)
    ops = tuple(
        replace(one, attributes={**one.attributes, STREAM: name}) if name else one
        for one, name in zip(graph.ops, streams, strict=True)
    )
    return replace(graph, ops=ops, waits=_waits(rank, links, op))


def _streams(graph: OpGraph, rank: RankTrace, links: Links, op: Ints) -> list[str]:
    """Per op the name of its stream, or ''."""
    main = main_stream(rank, links)
    names = {
        number: COMPUTE if number == main else f"stream{number}"
        for number in np.unique(rank.stream[links.device_rows]).tolist()
    }
    counts: dict[int, Counter[str]] = {}
    for index, number in zip(op.tolist(), rank.stream[links.device_rows].tolist(), strict=True):
        if index != NO_OP:
            counts.setdefault(index, Counter())[names[number]] += 1
    own = [""] * len(graph)
    for index, found in counts.items():
        own[index] = found.most_common(1)[0][0]
    below: list[set[str]] = [{name} - {""} for name in own]
    for index in range(len(graph) - 1, -1, -1):
        parent = graph.ops[index].parent
        if parent != NO_OP:
            below[parent] |= below[index]
    for index, one in enumerate(graph.ops):
        if not own[index] and len(below[index]) == 1:
            own[index] = next(iter(below[index]))
        elif not own[index] and one.parent != NO_OP:
            own[index] = own[one.parent]
    return own


def _waits(rank: RankTrace, links: Links, op: Ints) -> Ints:
    """`[E, 2]`: op whose work was waited for, op whose work waited."""
    measured = build_rank(rank, links)
    edges = measured.edges_
    crossing = np.flatnonzero(np.isin(edges.kind, WAITS))
    op_of_row = np.full(len(rank) + 1, NO_OP, np.int64)
    op_of_row[links.device_rows] = op
    rows = measured.nodes_.row[np.stack([edges.source[crossing], edges.target[crossing]], axis=1)]
    pairs = op_of_row[rows]
    known = (pairs != NO_OP).all(axis=1) & (pairs[:, 0] != pairs[:, 1])
    return np.unique(pairs[known], axis=0)
