"""Measured graph of one rank: host pieces, device operations, and every dependency between them."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.host import ALLOCATOR, ELAPSED, LAUNCH, PIECE, SYNC, Pieces, cut
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.lags import PLAUSIBLE_US, with_constant_lags
from perfmodel.graph.streams import CrossEdges, event_waits, occupancy_waits
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.graph.waits import Waits, find_waits
from perfmodel.trace.categories import COMMUNICATION_KERNEL_NAME, Category
from perfmodel.trace.columns import NONE, Floats, Ints, Mask, RankTrace
from perfmodel.trace.link import Links, runs
from perfmodel.trace.steps import MAIN

MIN_RECORDED_FRAC = 0.5
"""A file that holds less of its operators than this was sampled or filtered."""
_KIND_OF_CALL = {
    PIECE: NodeKind.HOST,
    LAUNCH: NodeKind.LAUNCH,
    SYNC: NodeKind.SYNC,
    ALLOCATOR: NodeKind.ALLOCATOR,
    ELAPSED: NodeKind.HOST,
}
_CAUSE_OF_CALL = {SYNC: Cause.BLOCKING_CALL, ALLOCATOR: Cause.ALLOCATOR}


def build_rank(rank: RankTrace, links: Links) -> ExecutionGraph:
    """The execution graph of one rank as it was measured.

    Node ids: host pieces, then returns from waits, then device operations, then step marks.
    """
    pieces = cut(rank, links)
    waits = find_waits(rank, links, pieces)
    returns = sorted(waits.returns)
    return_node = {piece: len(pieces.thread) + i for i, piece in enumerate(returns)}
    first_device = len(pieces.thread) + len(returns)
    device_position = {int(row): i for i, row in enumerate(links.device_rows)}
    is_collective = rank.name_contains(COMMUNICATION_KERNEL_NAME)[links.device_rows] & (
        rank.category[links.device_rows] == Category.KERNEL
    )
    nodes, resources = _nodes(rank, links, pieces, waits, returns, is_collective)

    def node(reference: int) -> int:
        if reference < 0:
            return first_device + device_position[~reference]
        if reference >= len(pieces.thread):
            return return_node[reference - len(pieces.thread)]
        return reference

    parts: list[tuple[Ints, Ints, Ints, Floats]] = []

    def add(source: Ints, target: Ints, kind: Ints | EdgeKind, overlap: Floats | float = 0.0) -> None:
        kinds = np.broadcast_to(np.asarray(kind, np.int64), len(source))
        parts.append((source, target, kinds, np.broadcast_to(overlap, len(source))))

    def edges() -> Edges:
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        found = Edges(*columns, lag_us=np.zeros(sum(len(part[0]) for part in parts)))
        return with_constant_lags(nodes.start_us, nodes.duration_us, found)

    def delays() -> Floats:
        return _delays(nodes, edges(), first_device)

    def add_cross(found: CrossEdges) -> None:
        shifted = found.source + first_device, found.target + first_device
        add(*shifted, found.kind, found.overlap_frac)

    add(*_program_order(pieces, return_node), EdgeKind.PROGRAM)
    found = [(node(s), node(t), k) for s, t, k in waits.edges]
    add(*np.array(found, np.int64).reshape(-1, 3).T)
    add(*_launch_edges(rank, links, pieces, first_device, is_collective))
    add(*_stream_edges(rank, links, first_device, is_collective))
    if len(np.unique(rank.stream[links.device_rows])) > 1:
        add_cross(event_waits(rank, links, is_collective, delays()))
        add_cross(occupancy_waits(rank, links, delays()))
    marks, nodes, (source, target) = _marks(rank, links, pieces, return_node, nodes, first_device)
    add(source, target, EdgeKind.PROGRAM)
    around = np.full(len(nodes), NONE, np.int64)
    around[: len(pieces.thread)] = pieces.annotation
    around[len(pieces.thread) : first_device] = pieces.annotation[np.array(returns, np.int64)]
    whole = links.recorded_frac >= MIN_RECORDED_FRAC
    return ExecutionGraph(
        nodes,
        edges(),
        marks,
        resources,
        _texts(rank, nodes.row),
        _texts(rank, around),
        Cause.UNEXPLAINED if whole else Cause.RECORDING_MISSING,
    )


def _nodes(
    rank: RankTrace,
    links: Links,
    pieces: Pieces,
    waits: Waits,
    returns: list[int],
    is_collective: Mask,
) -> tuple[Nodes, tuple[str, ...]]:
    count, devices = len(pieces.thread), links.device_rows
    threads = list(links.roles)
    stream = np.stack([rank.device[devices], rank.stream[devices]], axis=1)
    streams, stream_of = np.unique(stream, axis=0, return_inverse=True)
    resources = tuple(f"{rank.rank}/{links.roles[t]}" for t in threads) + tuple(
        f"{rank.rank}/gpu{d}/stream{s}" for d, s in streams
    )
    thread_index = {t: i for i, t in enumerate(threads)}
    host_resource = np.array([thread_index[int(t)] for t in pieces.thread], np.int64)
    call_cause = np.array([_CAUSE_OF_CALL.get(c, NONE) for c in range(5)])[pieces.call]
    host_cause = np.where(call_cause >= 0, call_cause, waits.cause)
    host_kind = np.array([_KIND_OF_CALL[c] for c in range(5)])[pieces.call]
    is_host_collective = waits.cause == Cause.COMMUNICATION
    host_kind = np.where(is_host_collective, NodeKind.COLLECTIVE, host_kind)
    host_scope = np.select(
        [pieces.call == ALLOCATOR, is_host_collective], [Scope.ALLOCATOR, Scope.COMM], Scope.HOST
    )
    release = np.full(count, -np.inf)
    for low, _ in runs(pieces.thread):
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
    scope_of = {
        NodeKind.KERNEL: Scope.COMPUTE,
        NodeKind.COLLECTIVE: Scope.COMM,
        NodeKind.COPY: Scope.MEMCPY,
    }
    cause_of = {
        NodeKind.KERNEL: Cause.COMPUTE,
        NodeKind.COLLECTIVE: Cause.COMMUNICATION,
        NodeKind.COPY: Cause.MEMCPY,
    }
    pinned = (links.device_launch < 0) & ~_follows_closely(rank, links)

    def stack(*columns: object, dtype: type = np.int64) -> np.ndarray:
        return np.concatenate([np.asarray(c, dtype) for c in columns])

    nodes = Nodes(
        kind=stack(host_kind, [NodeKind.WAIT] * len(at), device_kind),
        cause=stack(host_cause, [c for _, _, c in back], [cause_of[NodeKind(k)] for k in device_kind]),
        scope=stack(
            host_scope,
            [Scope.HOST if d else Scope.NONE for _, d, _ in back],
            [scope_of[NodeKind(k)] for k in device_kind],
        ),
        rank=np.full(count + len(at) + len(devices), rank.rank, np.int64),
        resource=stack(host_resource, host_resource[at], stream_of.reshape(-1) + len(threads)),
        row=stack(pieces.row, pieces.row[at], devices),
        start_us=stack(waits.start_us, [s for s, _, _ in back], rank.start_us[devices], dtype=float),
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
    previous, following = _stream_neighbours(rank, links)
    close = np.zeros(len(links.device_rows), bool)
    gap = rank.start_us[links.device_rows[following]] - rank.end_us[links.device_rows[previous]]
    close[following] = gap <= PLAUSIBLE_US[EdgeKind.STREAM][1]
    return close


def _stream_neighbours(rank: RankTrace, links: Links) -> tuple[Ints, Ints]:
    """Positions in `device_rows` of each operation that has one before it on its stream."""
    rows = links.device_rows
    stream = rank.stream[rows] + (rank.device[rows] << 32)
    order = np.argsort(stream, kind="stable")
    same = np.flatnonzero(stream[order][1:] == stream[order][:-1])
    return order[same], order[same + 1]


def _program_order(pieces: Pieces, return_node: dict[int, int]) -> tuple[Ints, Ints]:
    """Each piece after the one before it on its thread, returns in between."""
    count = len(pieces.thread)
    last = np.arange(count)
    at = np.fromiter(return_node.keys(), np.int64, len(return_node))
    last[at] = np.fromiter(return_node.values(), np.int64, len(return_node))
    same = np.flatnonzero(pieces.thread[1:] == pieces.thread[:-1])
    return np.concatenate([last[same], at]), np.concatenate([same + 1, last[at]])


def _launch_edges(
    rank: RankTrace, links: Links, pieces: Pieces, first_device: int, is_collective: Mask
) -> tuple[Ints, Ints, Ints]:
    piece = np.array([pieces.row_piece.get(int(r), NONE) for r in links.device_launch], np.int64)
    known = np.flatnonzero(piece >= 0)
    kind = _by_category(
        rank, links.device_rows, is_collective,
        EdgeKind.LAUNCH, EdgeKind.LAUNCH_COPY, EdgeKind.LAUNCH_COLLECTIVE,
    )
    return piece[known], known + first_device, kind[known]


def _stream_edges(
    rank: RankTrace, links: Links, first_device: int, is_collective: Mask
) -> tuple[Ints, Ints, Ints]:
    previous, following = _stream_neighbours(rank, links)
    kind = _by_category(
        rank, links.device_rows, is_collective,
        EdgeKind.STREAM, EdgeKind.STREAM_COPY, EdgeKind.STREAM_COLLECTIVE,
    )
    return previous + first_device, following + first_device, kind[following]


def _by_category(
    rank: RankTrace, rows: Ints, is_collective: Mask, kernel: int, copy: int, collective: int
) -> Ints:
    is_kernel = rank.category[rows] == Category.KERNEL
    return np.select([is_collective, is_kernel], [collective, kernel], copy)


def _delays(nodes: Nodes, edges: Edges, first_device: int) -> Floats:
    """Per device operation: how much later it started than its edges so far ask for."""
    ready = nodes.release_us.copy()
    np.maximum.at(ready, edges.target, edges.ready_us(nodes.start_us, nodes.duration_us))
    return (nodes.start_us - ready)[first_device:]


def _marks(
    rank: RankTrace,
    links: Links,
    pieces: Pieces,
    return_node: dict[int, int],
    nodes: Nodes,
    first_device: int,
) -> tuple[StepMarks, Nodes, tuple[Ints, Ints]]:
    """Append a node of zero length at each step start and end, behind what precedes it."""
    steps = links.steps
    main = [t for t, role in links.roles.items() if role == MAIN]
    own = np.flatnonzero(pieces.thread == main[0]) if main else np.zeros(0, np.int64)
    source, target, when = [], [], []
    first_mark = len(nodes)
    for step in range(len(steps)):
        for time in (steps.start_us[step], steps.end_us[step]):
            mark = first_mark + len(when)
            when.append(time)
            if steps.is_window and time == steps.end_us[step]:
                lasts = [high - 1 for _, high in runs(pieces.thread)]
                lasts = [return_node.get(p, p) for p in lasts]
                sinks = np.unique(nodes.resource[first_device:], return_index=False)
                for resource in sinks:
                    on = np.flatnonzero(nodes.resource == resource)
                    lasts.append(int(on[np.argmax(nodes.end_us[on])]))
                source += lasts
                target += [mark] * len(lasts)
                continue
            at = int(np.searchsorted(pieces.end_us[own], time + 1e-9, side="right")) - 1
            if at >= 0 and pieces.end_us[own[at]] == time:
                piece = int(own[at])
                source.append(return_node.get(piece, piece))
                target.append(mark)
    count = len(when)
    release = np.array(when)
    release[np.isin(np.arange(count) + first_mark, target)] = -np.inf

    def grow(column: np.ndarray, value: object) -> np.ndarray:
        return np.concatenate([column, np.broadcast_to(np.asarray(value, column.dtype), count)])

    nodes = Nodes(
        kind=grow(nodes.kind, NodeKind.MARK),
        cause=grow(nodes.cause, Cause.END_OF_STEP),
        scope=grow(nodes.scope, Scope.NONE),
        rank=grow(nodes.rank, rank.rank),
        resource=grow(nodes.resource, 0),
        row=grow(nodes.row, NONE),
        start_us=grow(nodes.start_us, np.array(when)),
        duration_us=grow(nodes.duration_us, 0.0),
        release_us=grow(nodes.release_us, release),
    )
    ids = np.arange(first_mark, first_mark + count).reshape(-1, 2)
    marks = StepMarks(np.full(len(steps), rank.rank), steps.names, ids[:, 0], ids[:, 1])
    return marks, nodes, (np.array(source, np.int64), np.array(target, np.int64))


def _texts(rank: RankTrace, rows: Ints) -> tuple[str, ...]:
    """The names of trace rows; empty for -1."""
    texts = [*rank.strings.texts, ""]
    return tuple(texts[name] for name in np.append(rank.name, NONE)[rows].tolist())
