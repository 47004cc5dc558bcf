"""Measured graph of one rank: its nodes, step marks, and every dependency between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct
from perfmodel.graph.data import held_until_measured, without_cycles
from perfmodel.graph.host import ALLOCATOR, ELAPSED, LAUNCH, PIECE, SYNC, Pieces, cut_threads
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.measured_waits import PLAUSIBLE_LAG_US, with_constant_lags
from perfmodel.graph.streams import CrossEdges, event_waits, occupancy_waits, stream_edges
from perfmodel.graph.threads import Waits
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.graph.waits import find_waits
from perfmodel.trace.categories import COMMUNICATION_KERNEL_NAME, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, equal_runs, stream_keys
from perfmodel.trace.window import MAIN_THREAD

MIN_RECORDED_FRAC = 0.5
"""A file that holds less of its operators than this was sampled or filtered."""


class _EdgeList:
    """Edges as they are found, in parts."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints, Floats]] = []

    def add(
        self, source: Ints, target: Ints, kind: Ints | EdgeKind, overlap: Floats | float = 0.0
    ) -> None:
        kinds = np.broadcast_to(np.asarray(kind, np.int8), len(source))
        overlaps = np.broadcast_to(np.asarray(overlap, np.float64), len(source))
        self._parts.append((source.astype(np.int32), target.astype(np.int32), kinds, overlaps))

    def add_cross(self, found: CrossEdges, first_device: int) -> None:
        source, target = found.source + first_device, found.target + first_device
        self.add(source, target, found.kind, found.overlap_frac)

    def of(self, nodes: Nodes) -> Edges:
        """All so far, with the constant lag of each kind."""
        source, target, kind, overlap = (
            np.concatenate(column) for column in zip(*self._parts, strict=True)
        )
        bare = Edges(source, target, kind, overlap, np.zeros(len(source)))
        return with_constant_lags(nodes.start_us, nodes.duration_us, bare)


def build_rank(rank: RankTrace, links: Links) -> ExecutionGraph:
    """The execution graph of one rank as it was measured.

    Node ids: host pieces, then returns from waits, then device operations, then step marks.
    """
    return without_cycles(_graph_with_all_edges(rank, links), rank.where)


def _graph_with_all_edges(rank: RankTrace, links: Links) -> ExecutionGraph:
    """The graph with every edge that was found."""
    pieces = cut_threads(rank, links)
    waits = find_waits(rank, links, pieces)
    count, devices = len(pieces.thread), links.device_rows
    returns = np.array(sorted(waits.returns), np.int64)
    first_device = count + len(returns)
    last_node = np.arange(count)
    last_node[returns] = count + np.arange(len(returns))
    is_collective = rank.name_contains(COMMUNICATION_KERNEL_NAME)[devices] & (
        rank.category[devices] == Category.KERNEL
    )
    nodes, resources = rank_nodes(rank, links, pieces, waits, returns.tolist(), is_collective)
    edges = _EdgeList()
    edges.add(*_program_order(pieces, last_node), EdgeKind.PROGRAM)
    edges.add(*_wait_edges(waits.edges, links, count, last_node, first_device))
    edges.add(*_launch_edges(rank, links, pieces, first_device, is_collective))
    _add_stream_order(edges, rank, links, first_device, is_collective)
    if len(distinct(stream_keys(rank, devices))) > 1:
        late = _start_delays(nodes, edges.of(nodes), first_device)
        edges.add_cross(event_waits(rank, links, is_collective, late), first_device)
        late = _start_delays(nodes, edges.of(nodes), first_device)
        edges.add_cross(occupancy_waits(rank, links, late), first_device)
    marks, nodes, into_marks = with_marks(rank, links, pieces, last_node, nodes, first_device)
    edges.add(*into_marks, EdgeKind.PROGRAM)
    around = np.full(len(nodes), NONE, np.int64)
    around[:count] = pieces.annotation
    around[count:first_device] = pieces.annotation[returns]
    whole = links.recorded_frac >= MIN_RECORDED_FRAC
    found = edges.of(nodes)
    return ExecutionGraph(
        held_until_measured(nodes, found),
        found,
        marks,
        resources,
        _event_names(rank, nodes.row),
        _event_names(rank, around),
        Cause.UNEXPLAINED if whole else Cause.RECORDING_MISSING,
        _process_groups(rank, devices, is_collective, first_device),
        (*_sampling_notes(rank, links), *_overlap_notes(rank, nodes, found)),
    )


def _sampling_notes(rank: RankTrace, links: Links) -> Iterator[str]:
    """That a file holds only a part of what ran."""
    if links.recorded_frac < MIN_RECORDED_FRAC:
        yield (
            f"{rank.where}: holds {links.recorded_frac:.1%} of the operators that ran (by their "
            "ids): sampled or filtered; gaps count as recording_missing"
        )


def _overlap_notes(rank: RankTrace, nodes: Nodes, edges: Edges) -> Iterator[str]:
    """Of operations launched one by one that overlap on their stream: how many, in a line."""
    rows = np.flatnonzero(edges.kind == EdgeKind.STREAM_OVERLAP)
    correlation = rank.correlation[nodes.row]
    source, target = edges.source[rows], edges.target[rows]
    apart = (correlation[source] != correlation[target]) | (correlation[target] <= 0)
    overlap_us = (edges.overlap_frac[rows] * nodes.duration_us[source])[apart]
    if len(overlap_us):
        yield (
            f"{rank.where}: {len(overlap_us)} device operations overlap one before them on their "
            f"stream by up to {overlap_us.max():.1f} us, as timestamps are off: their order is kept"
        )


def _process_groups(
    rank: RankTrace, devices: Ints, is_collective: Mask, first_device: int
) -> dict[int, str]:
    """Collective node to its process group, where the file names it."""
    named = np.flatnonzero(is_collective & (rank.process_group[devices] >= 0))
    names = rank.process_group[devices[named]].tolist()
    return {
        int(at) + first_device: rank.strings[name] for at, name in zip(named, names, strict=True)
    }


def _wait_edges(
    found: list[tuple[int, int, EdgeKind]],
    links: Links,
    count: int,
    last_node: Ints,
    first_device: int,
) -> tuple[Ints, Ints, Ints]:
    """`Waits.edges` with their references (`~device row`, piece, count + piece) as node ids."""
    table = np.array(found, np.int64).reshape(-1, 3)
    ends = table[:, :2]
    device = np.searchsorted(links.device_rows, ~np.minimum(ends, -1)) + first_device
    returned = last_node[np.clip(ends - count, 0, count - 1)] if count else ends
    node = np.select([ends < 0, ends >= count], [device, returned], ends)
    return node[:, 0], node[:, 1], table[:, 2]


def _program_order(pieces: Pieces, last_node: Ints) -> tuple[Ints, Ints]:
    """Each piece after the one before it on its thread, returns in between."""
    same = np.flatnonzero(pieces.thread[1:] == pieces.thread[:-1])
    returning = np.flatnonzero(last_node != np.arange(len(last_node)))
    return (
        np.concatenate([last_node[same], returning]),
        np.concatenate([same + 1, last_node[returning]]),
    )


def _launch_edges(
    rank: RankTrace, links: Links, pieces: Pieces, first_device: int, is_collective: Mask
) -> tuple[Ints, Ints, Ints]:
    launch = links.device_launch
    piece = np.where(launch >= 0, pieces.row_piece[launch], NONE)
    known = np.flatnonzero(piece >= 0)
    kind = _by_category(
        rank,
        links.device_rows,
        is_collective,
        EdgeKind.LAUNCH,
        EdgeKind.LAUNCH_COPY,
        EdgeKind.LAUNCH_COLLECTIVE,
    )
    return piece[known], known + first_device, kind[known]


def _add_stream_order(
    edges: _EdgeList, rank: RankTrace, links: Links, first_device: int, is_collective: Mask
) -> None:
    order = stream_edges(rank, links)
    kind = _by_category(
        rank,
        links.device_rows,
        is_collective,
        EdgeKind.STREAM,
        EdgeKind.STREAM_COPY,
        EdgeKind.STREAM_COLLECTIVE,
    )[order.target]
    launch = links.device_launch
    one_launch = (launch[order.source] == launch[order.target]) & (launch[order.target] >= 0)
    kind = np.where(one_launch, EdgeKind.STREAM_GRAPH, kind)
    kind = np.where(order.overlap_frac > 0, EdgeKind.STREAM_OVERLAP, kind)
    source, target = order.source + first_device, order.target + first_device
    edges.add(source, target, kind, order.overlap_frac)


def _by_category(
    rank: RankTrace, rows: Ints, is_collective: Mask, kernel: int, copy: int, collective: int
) -> Ints:
    is_kernel = rank.category[rows] == Category.KERNEL
    return np.select([is_collective, is_kernel], [collective, kernel], copy)


def _start_delays(nodes: Nodes, edges: Edges, first_device: int) -> Floats:
    """Per device operation: how much later it started than its edges so far ask for."""
    ready = nodes.release_us.copy()
    np.maximum.at(ready, edges.target, edges.ready_us(nodes.start_us, nodes.duration_us))
    return (nodes.start_us - ready)[first_device:]


def _event_names(rank: RankTrace, rows: Ints) -> tuple[str, ...]:
    """The names of trace rows; empty for -1."""
    texts = [*rank.strings.texts, ""]
    return tuple(map(texts.__getitem__, np.append(rank.name, NONE)[rows].tolist()))


_KIND_OF_CALL = {
    PIECE: NodeKind.HOST,
    LAUNCH: NodeKind.LAUNCH,
    SYNC: NodeKind.SYNC,
    ALLOCATOR: NodeKind.ALLOCATOR,
    ELAPSED: NodeKind.HOST,
}
_OF_DEVICE_KIND = (
    (NodeKind.KERNEL, Scope.COMPUTE, Cause.COMPUTE),
    (NodeKind.COLLECTIVE, Scope.COMM, Cause.COMMUNICATION),
    (NodeKind.COPY, Scope.MEMCPY, Cause.MEMCPY),
)
_CAUSE_OF_CALL = {SYNC: Cause.BLOCKING_CALL, ALLOCATOR: Cause.ALLOCATOR}


def rank_nodes(
    rank: RankTrace,
    links: Links,
    pieces: Pieces,
    waits: Waits,
    returns: list[int],
    is_collective: Mask,
) -> tuple[Nodes, tuple[str, ...]]:
    """Nodes in the order pieces, returns (of the pieces in `returns`), device operations; and the
    names of the resources they are bound to."""
    count, devices = len(pieces.thread), links.device_rows
    threads = list(links.roles)
    streams, stream_of = np.unique(stream_keys(rank, devices), return_inverse=True)
    resources = tuple(f"{rank.rank}/{links.roles[t]}" for t in threads) + tuple(
        f"{rank.rank}/gpu{key >> 32}/stream{key & 0xFFFFFFFF}" for key in streams.tolist()
    )
    host_resource = np.zeros(count, np.int32)
    for low, high in equal_runs(pieces.thread):
        host_resource[low:high] = threads.index(int(pieces.thread[low]))
    call_cause = np.array([_CAUSE_OF_CALL.get(c, NONE) for c in _KIND_OF_CALL])[pieces.call]
    host_cause = np.where(call_cause >= 0, call_cause, waits.cause)
    host_kind = np.array(list(_KIND_OF_CALL.values()))[pieces.call]
    is_host_collective = waits.cause == Cause.COMMUNICATION
    host_kind = np.where(is_host_collective, NodeKind.COLLECTIVE, host_kind)
    host_scope = np.select(
        [
            pieces.call == ALLOCATOR,
            is_host_collective,
            waits.cause == Cause.WAITING_FOR_INPUT,
        ],
        [Scope.ALLOCATOR, Scope.COMM, Scope.INPUT],
        Scope.HOST,
    )
    release = np.full(count, -np.inf)
    for low, _ in equal_runs(pieces.thread):
        if low not in waits.woken and low + 1 not in waits.woken:
            release[low] = waits.start_us[low]
    back = [waits.returns[p] for p in returns]
    at = np.array(returns, np.int64)
    category = rank.category[devices]
    device_kind = np.select(
        [is_collective, category == Category.KERNEL],
        [NodeKind.COLLECTIVE, NodeKind.KERNEL],
        NodeKind.COPY,
    )
    scope_of, cause_of = np.zeros(len(NodeKind), np.int64), np.zeros(len(NodeKind), np.int64)
    for kind, scope, cause in _OF_DEVICE_KIND:
        scope_of[kind], cause_of[kind] = scope, cause
    pinned = (links.device_launch < 0) & ~_follows_closely(rank, links)

    def stack(*columns: object, dtype: type) -> np.ndarray:
        return np.concatenate([np.asarray(c, dtype) for c in columns])

    nodes = Nodes(
        kind=stack(host_kind, [NodeKind.WAIT] * len(at), device_kind, dtype=np.int8),
        cause=stack(host_cause, [c for _, _, c in back], cause_of[device_kind], dtype=np.int8),
        scope=stack(
            host_scope,
            [Scope.HOST if d else Scope.NONE for _, d, _ in back],
            scope_of[device_kind],
            dtype=np.int8,
        ),
        rank=np.full(count + len(at) + len(devices), rank.rank, np.int32),
        resource=stack(host_resource, host_resource[at], stream_of + len(threads), dtype=np.int32),
        row=stack(pieces.row, pieces.row[at], devices, dtype=np.int32),
        start_us=stack(
            waits.start_us, [s for s, _, _ in back], rank.start_us[devices], dtype=float
        ),
        duration_us=stack(
            waits.duration_us, [d for _, d, _ in back], rank.duration_us[devices], dtype=float
        ),
        release_us=stack(
            release,
            np.full(len(at), -np.inf),
            np.where(pinned, rank.start_us[devices], -np.inf),
            dtype=float,
        ),
    )
    return nodes, resources


def _follows_closely(rank: RankTrace, links: Links) -> Mask:
    """Device operations that began right after the one before them on their stream."""
    previous, following = stream_neighbours(rank, links)
    close = np.zeros(len(links.device_rows), bool)
    gap = rank.start_us[links.device_rows[following]] - rank.end_us[links.device_rows[previous]]
    close[following] = gap <= PLAUSIBLE_LAG_US[EdgeKind.STREAM][1]
    return close


def stream_neighbours(rank: RankTrace, links: Links) -> tuple[Ints, Ints]:
    """Positions in `device_rows` of each operation that has one before it on its stream."""
    rows = links.device_rows
    stream = stream_keys(rank, rows)
    order = np.argsort(stream, kind="stable")
    same = np.flatnonzero(stream[order][1:] == stream[order][:-1])
    return order[same], order[same + 1]


def with_marks(
    rank: RankTrace, links: Links, pieces: Pieces, last_node: Ints, nodes: Nodes, first_device: int
) -> tuple[StepMarks, Nodes, tuple[Ints, Ints]]:
    """Append a mark at each step start and end; the edges into them are (source, target).

    `last_node` is the node that a piece ends with (itself, or its return). A step's bounds follow
    the piece of the main thread that ends there, or the call across it; the end of a window
    follows everything.
    """
    steps = links.steps
    ends = _last_nodes(links, pieces, last_node, nodes, first_device)
    main = np.flatnonzero(
        np.isin(pieces.thread, [t for t, r in links.roles.items() if r == MAIN_THREAD])
    )
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


def _last_nodes(
    links: Links, pieces: Pieces, last_node: Ints, nodes: Nodes, first_device: int
) -> Ints:
    """The last node of every thread and the latest of every stream."""
    threads = [last_node[high - 1] for _, high in equal_runs(pieces.thread)]
    device = np.arange(first_device, first_device + len(links.device_rows))
    order = device[np.lexsort((nodes.end_us[device], nodes.resource[device]))]
    streams = [order[high - 1] for _, high in equal_runs(nodes.resource[order])]
    return np.array([*threads, *streams], np.int64)
