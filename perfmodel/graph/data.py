"""Data dependencies of an execution trace as edges; inferred edges that contradict one another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Ints, distinct, distinct_pairs
from perfmodel.errors import GraphError
from perfmodel.graph.kinds import CERTAIN_KINDS, EdgeKind
from perfmodel.graph.measured_waits import with_constant_lags
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes
from perfmodel.graph.waits import ROUNDING_US
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, stream_keys, thread_keys

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace
    from perfmodel.trace.pair import Pairing


def with_data_edges(
    graph: ExecutionGraph,
    rank: RankTrace,
    links: Links,
    execution_trace: ExecutionTrace,
    pairing: Pairing,
) -> ExecutionGraph:
    """`graph` (of this one rank) with an edge from the last device operation of each producer to
    the first one of its consumer, where they run on different streams.

    Within a stream the order says it already. An edge that the measurement contradicts (the
    consumer began before) is left out.
    """
    events = defaultdict(list)
    for event, node in zip(pairing.event.tolist(), pairing.node.tolist(), strict=True):
        events[node].append(event)
    producer, consumer = execution_trace.data_dependencies()
    pairs = [
        pair
        for p, c in zip(producer.tolist(), consumer.tolist(), strict=True)
        if len(events[p]) == len(events[c])
        for pair in zip(events[p], events[c], strict=True)
    ]
    if not pairs:
        return graph
    table = np.array(pairs, np.int64)
    rows = distinct(table.reshape(-1))
    first, last = _device_operations(rank, links, rows)
    source = last[np.searchsorted(rows, table[:, 0])]
    target = first[np.searchsorted(rows, table[:, 1])]
    known = (source >= 0) & (target >= 0)
    result = np.stack(distinct_pairs(source[known], target[known]), axis=1)
    devices = links.device_rows
    stream, start, end = stream_keys(rank, devices), rank.start_us[devices], rank.end_us[devices]
    result = result[
        (stream[result[:, 0]] != stream[result[:, 1]])
        & (end[result[:, 0]] <= start[result[:, 1]] + ROUNDING_US)
    ]
    node = np.flatnonzero(graph.on_device)
    data = Edges.of(node[result[:, 0]], node[result[:, 1]], EdgeKind.DATA, lag_us=-ROUNDING_US)
    return without_cycles(replace(graph, edges_=graph.edges_.and_(data)), rank.where)


def _device_operations(rank: RankTrace, links: Links, events: Ints) -> tuple[Ints, Ints]:
    """Per host event: positions in `device_rows` of the first and last operation launched in it."""
    launched = np.flatnonzero(links.device_launch >= 0)
    launch = links.device_launch[launched]
    order = np.lexsort((rank.start_us[launch], rank.thread[launch]))
    launched, launch = launched[order], launch[order]
    keys = thread_keys(rank.thread[launch], rank.start_us[launch])
    begun, over = (
        thread_keys(rank.thread[events], us[events]) for us in (rank.start_us, rank.end_us)
    )
    low, past = np.searchsorted(keys, begun, side="left"), np.searchsorted(keys, over, side="right")
    launched, is_empty = np.append(launched, NONE), past <= low
    return launched[np.where(is_empty, NONE, low)], launched[np.where(is_empty, NONE, past - 1)]


def without_cycles(graph: ExecutionGraph, where: str) -> ExecutionGraph:
    """The graph itself; where inferred dependencies contradict one another (in damaged traces),
    without those that go backwards in measured time.

    Raises `GraphError` naming `where` and the cycle when what the file states is a cycle.
    """
    try:
        graph.order  # noqa: B018 (sorting finds the cycle)
        return graph
    except GraphError:
        nodes, edges = graph.nodes_, graph.edges_
    backwards = nodes.start_us[edges.source] >= nodes.start_us[edges.target]
    kept = edges.where(~backwards | np.isin(edges.kind, CERTAIN_KINDS))
    left_out = graph.left_out + len(edges) - len(kept)
    if graph.arrivals is None:
        kept = with_constant_lags(nodes.start_us, nodes.duration_us, kept)
    mended = replace(graph, nodes_=held_until_measured(nodes, kept), edges_=kept, left_out=left_out)
    try:
        mended.order  # noqa: B018
    except GraphError as error:
        raise GraphError(f"{where}: {error}: the times of this trace do not fit") from None
    return mended


def held_until_measured(nodes: Nodes, edges: Edges) -> Nodes:
    """`nodes`, those that nothing precedes held until their measured start."""
    alone = np.bincount(edges.target, minlength=len(nodes)) == 0
    late = np.where(alone, np.maximum(nodes.release_us, nodes.start_us), nodes.release_us)
    return replace(nodes, release_us=late)
