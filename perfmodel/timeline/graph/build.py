"""Measured graph of one rank: its nodes, step marks, every dependency between them, and the waits
that none explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct, has_code, median
from perfmodel.plot.names import WAIT_BEFORE
from perfmodel.timeline.graph.host import ALLOCATOR, ELAPSED, SYNC, Pieces, cut_threads
from perfmodel.timeline.graph.kinds import (
    CAUSE_ON_THREAD,
    LAUNCH_KINDS,
    NOT_EXPLAINED,
    PLAUSIBLE_LAG_US,
    STREAM_KINDS,
    Cause,
    EdgeKind,
    NodeKind,
    Scope,
)
from perfmodel.timeline.graph.streams import event_waits, occupancy_waits, stream_edges
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks, acyclic
from perfmodel.timeline.graph.waits import Waits, find_waits
from perfmodel.trace.categories import STREAM_WAIT_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, equal_runs, stream_keys
from perfmodel.trace.window import MAIN_THREAD

MIN_RECORDED_FRAC = 0.5
"""A file that holds less of its operators than this was sampled or filtered."""


def build_rank(rank: RankTrace, links: Links) -> ExecutionGraph:
    """The execution graph of one rank as it was measured.

    Node ids: host pieces, then returns from waits, then device operations, then step marks.
    """
    pieces = cut_threads(rank, links)
    waits = find_waits(rank, links, pieces)
    count, devices = len(pieces.thread), links.device_rows
    returns = np.array(sorted(waits.returns), np.int64)
    first_device = count + len(returns)
    last_node = np.arange(count)
    last_node[returns] = count + np.arange(len(returns))
    is_kernel = rank.category[devices] == Category.KERNEL
    is_collective = rank.is_communication[devices] & is_kernel
    nodes, resources = rank_nodes(rank, links, pieces, waits, is_collective)
    edges = _host_edges(links, pieces, waits, last_node).and_(
        _device_edges(rank, links, pieces, first_device, is_collective)
    )
    if len(distinct(stream_keys(rank, devices))) > 1:
        late_us = _start_delays_us(nodes, edges, first_device)
        waits_for_events = event_waits(rank, links, is_collective, late_us)
        edges = edges.and_(waits_for_events.shifted(first_device))
        late_us = _start_delays_us(nodes, edges, first_device)
        edges = edges.and_(occupancy_waits(rank, links, late_us).shifted(first_device))
    marks, nodes, into_marks = with_marks(rank, links, pieces, last_node, nodes, first_device)
    edges = with_constant_lags(nodes.start_us, nodes.duration_us, edges.and_(into_marks))
    around = np.full(len(nodes), NONE, np.int64)
    around[:count] = pieces.annotation
    around[count:first_device] = pieces.annotation[returns]
    whole = links.recorded_frac >= MIN_RECORDED_FRAC
    named = np.flatnonzero(is_collective & (rank.process_group[devices] >= 0))
    names = rank.process_group[devices[named]].tolist()
    numbers = (named + first_device).tolist()
    groups = {at: rank.strings[name] for at, name in zip(numbers, names, strict=True)}
    # What nothing precedes is held until its measured start.
    alone = np.bincount(edges.target, minlength=len(nodes)) == 0
    late_us = np.where(alone, np.maximum(nodes.release_us, nodes.start_us), nodes.release_us)
    graph = ExecutionGraph(
        replace(nodes, release_us=late_us),
        edges,
        marks,
        resources,
        _event_names(rank, nodes.row),
        _event_names(rank, around),
        Cause.UNEXPLAINED if whole else Cause.RECORDING_MISSING,
        groups,
        tuple(_warnings(rank, links)),
    )
    return acyclic(graph, rank.where)


def _warnings(rank: RankTrace, links: Links) -> Iterator[str]:
    """That a file holds only a part of what ran, and how many waits for events are guessed."""
    if links.recorded_frac < MIN_RECORDED_FRAC:
        yield (
            f"{rank.where}: holds {100 * links.recorded_frac:.1f} % of the operators that ran (by "
            "their ids): sampled or filtered; gaps count as recording missing"
        )
    runtime, records = rank.of(Category.RUNTIME), rank.of(Category.CUDA_SYNC)
    calls = rank.of(Category.RUNTIME, named=STREAM_WAIT_CALL)
    records = records[np.isin(rank.correlation[records], rank.correlation[calls])]
    known = rank.sync_source_stream[records] >= 0
    known &= np.isin(rank.sync_record_correlation[records], rank.correlation[runtime])
    if guessed := int((~known).sum()):
        yield (
            f"{rank.where}: {guessed} of {len(known)} waits for events are for one whose record is "
            "not in the file: what they waited for is guessed from launch order and times"
        )


def _host_edges(links: Links, pieces: Pieces, waits: Waits, last_node: Ints) -> Edges:
    """The order on threads, and what pieces and operations of the device waited for on the host."""
    count = len(last_node)
    # Each piece after the one before it on its thread, returns in between.
    same = np.flatnonzero(pieces.thread[1:] == pieces.thread[:-1])
    returning = np.flatnonzero(last_node != np.arange(count))
    source = np.concatenate([last_node[same], returning])
    program = Edges.of(source, np.concatenate([same + 1, last_node[returning]]), EdgeKind.PROGRAM)
    # `Waits.edges` with their references (`~device row`, piece, count + piece) as node ids.
    table = np.array(waits.edges, np.int64).reshape(-1, 3)
    ends, first_device = table[:, :2], count + len(waits.returns)
    device = np.searchsorted(links.device_rows, ~np.minimum(ends, -1)) + first_device
    returned = last_node[np.clip(ends - count, 0, count - 1)] if count else ends
    node = np.select([ends < 0, ends >= count], [device, returned], ends)
    return program.and_(Edges.of(node[:, 0], node[:, 1], table[:, 2]))


def _device_edges(
    rank: RankTrace, links: Links, pieces: Pieces, first_device: int, is_collective: Mask
) -> Edges:
    """Each operation behind the piece of its launch call, where that is known, and behind the one
    before it on its stream."""
    launch, is_kernel = links.device_launch, rank.category[links.device_rows] == Category.KERNEL
    of_kind = np.where(is_collective, 2, np.where(is_kernel, 0, 1))  # in `LAUNCH_KINDS` and others
    piece = np.where(launch >= 0, pieces.row_piece[launch], NONE)
    known = np.flatnonzero(piece >= 0)
    launched = Edges.of(piece[known], known + first_device, np.array(LAUNCH_KINDS)[of_kind[known]])
    order = stream_edges(rank, links)
    kind = np.array(STREAM_KINDS)[of_kind[order.target]]
    one_launch = (launch[order.source] == launch[order.target]) & (launch[order.target] >= 0)
    kind = np.where(one_launch, EdgeKind.STREAM_GRAPH, kind)
    kind = np.where(order.overlap_frac > 0, EdgeKind.STREAM_OVERLAP, kind)
    return launched.and_(replace(order, kind=kind.astype(np.int8)).shifted(first_device))


def _start_delays_us(nodes: Nodes, edges: Edges, first_device: int) -> Floats:
    """Per device operation: how much later it started than its edges so far ask for."""
    edges = with_constant_lags(nodes.start_us, nodes.duration_us, edges)
    ready = nodes.release_us.copy()
    np.maximum.at(ready, edges.target, edges.ready_us(nodes.start_us, nodes.duration_us))
    return (nodes.start_us - ready)[first_device:]


NO_LAG = (
    EdgeKind.PROGRAM,
    EdgeKind.HAND_OVER,
    EdgeKind.HAND_BACK,
    EdgeKind.ALLOCATOR,
    EdgeKind.RENDEZVOUS,
    EdgeKind.STREAM_OVERLAP,
)
_ROUNDS = 4
_TOLERANCE_US = 1e-6


def with_constant_lags(start_us: Floats, duration_us: Floats, edges: Edges) -> Edges:
    """`edges` with the lag of each kind: the median (of gaps within a stream, the mean), over the
    decisive edges of that kind, of the time from when the source set its target free until the
    target started.

    An edge is decisive when no other edge into its target asks for a later start; which ones are
    depends on the lags, so the two are found in turn. A kind that never decided has lag 0.
    """
    decided = np.zeros(len(start_us), bool)
    decided[edges.target[~has_code(edges.kind, NO_LAG)]] = True
    rows = np.flatnonzero(decided.take(edges.target))
    target, kind = edges.target[rows].astype(np.int64), edges.kind[rows].astype(np.int64)
    free = replace(edges, lag_us=np.zeros(len(edges))).ready_us(start_us, duration_us)[rows]
    gap = start_us[target] - free
    bounds = np.array([PLAUSIBLE_LAG_US[EdgeKind(k)] for k in range(len(EdgeKind))])
    fixed = has_code(kind, NO_LAG) | (gap < bounds[kind, 0]) | (gap > bounds[kind, 1])
    lag = np.zeros(len(EdgeKind))
    for _ in range(_ROUNDS):
        before = lag.copy()
        ready_us, latest_us = free + lag[kind], np.full(len(start_us), -np.inf)
        np.maximum.at(latest_us, target, ready_us)
        decisive = (ready_us >= latest_us[target] - _TOLERANCE_US) & ~fixed
        for code in distinct(kind[decisive]):
            # Gaps of streams add up over thousands of operations: their mean keeps the sum.
            typical = np.mean if code in STREAM_KINDS else median
            lag[code] = typical(gap[decisive & (kind == code)])
        if np.array_equal(lag, before):
            break
    return replace(edges, lag_us=lag[edges.kind])


def _event_names(rank: RankTrace, rows: Ints) -> tuple[str, ...]:
    texts = [*rank.strings.texts, ""]
    return tuple(map(texts.__getitem__, np.append(rank.name, NONE)[rows].tolist()))


_OF_DEVICE = (
    (NodeKind.COLLECTIVE, Scope.COMM, Cause.COMMUNICATION),
    (NodeKind.KERNEL, Scope.COMPUTE, Cause.COMPUTE),
    (NodeKind.COPY, Scope.MEMCPY, Cause.MEMCPY),
)


def _host_nodes(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> Nodes:
    count, threads = len(pieces.thread), list(links.roles)
    resource, release_us = np.zeros(count, np.int32), np.full(count, -np.inf)
    for low, high in equal_runs(pieces.thread):
        resource[low:high] = threads.index(int(pieces.thread[low]))
        if low not in waits.woken and low + 1 not in waits.woken:
            release_us[low] = waits.start_us[low]
    is_collective = waits.cause == Cause.COMMUNICATION
    kind = np.where(pieces.call == ELAPSED, NodeKind.HOST, pieces.call)
    is_sync, is_allocator = pieces.call == SYNC, pieces.call == ALLOCATOR
    causes = [Cause.BLOCKING_CALL, Cause.ALLOCATOR]
    scope = np.select(
        [is_allocator, is_collective, waits.cause == Cause.WAITING_FOR_INPUT],
        [Scope.ALLOCATOR, Scope.COMM, Scope.INPUT],
        Scope.HOST,
    )
    return Nodes(
        kind=np.where(is_collective, NodeKind.COLLECTIVE, kind).astype(np.int8),
        cause=np.select([is_sync, is_allocator], causes, waits.cause).astype(np.int8),
        scope=scope.astype(np.int8),
        rank=np.full(count, rank.rank, np.int32),
        resource=resource,
        row=pieces.row.astype(np.int32),
        start_us=waits.start_us,
        duration_us=waits.duration_us,
        release_us=release_us,
    )


def rank_nodes(
    rank: RankTrace, links: Links, pieces: Pieces, waits: Waits, is_collective: Mask
) -> tuple[Nodes, tuple[str, ...]]:
    """Nodes in the order pieces, returns from waits, device operations; and the names of the
    resources they are bound to."""
    host, devices = _host_nodes(rank, links, pieces, waits), links.device_rows
    streams, stream_of = np.unique(stream_keys(rank, devices), return_inverse=True)
    resources = tuple(f"{rank.rank}/{role}" for role in links.roles.values()) + tuple(
        f"{rank.rank}/gpu{key >> 32}/stream{key & 0xFFFFFFFF}" for key in streams.tolist()
    )
    at = np.array(sorted(waits.returns), np.int64)
    back = [waits.returns[piece] for piece in at.tolist()]
    nodes = host.with_more(
        len(at),
        kind=NodeKind.WAIT,
        cause=[cause for _, _, cause in back],
        scope=[Scope.HOST if duration_us else Scope.NONE for _, duration_us, _ in back],
        rank=rank.rank,
        resource=host.resource[at],
        row=pieces.row[at],
        start_us=[start_us for start_us, _, _ in back],
        duration_us=[duration_us for _, duration_us, _ in back],
    )
    order = np.argsort(stream_of, kind="stable")
    same = np.flatnonzero(np.diff(stream_of[order]) == 0)
    gap_us = rank.start_us[devices[order[same + 1]]] - rank.end_us[devices[order[same]]]
    follows_closely = np.zeros(len(devices), bool)
    follows_closely[order[same + 1]] = gap_us <= PLAUSIBLE_LAG_US[EdgeKind.STREAM][1]
    pinned = (links.device_launch < 0) & ~follows_closely
    of_kind = np.where(is_collective, 0, np.where(rank.category[devices] == Category.KERNEL, 1, 2))
    kind, scope, cause = np.array(_OF_DEVICE)[of_kind].T
    nodes = nodes.with_more(
        len(devices),
        kind=kind,
        cause=cause,
        scope=scope,
        rank=rank.rank,
        resource=stream_of + len(links.roles),
        row=devices,
        start_us=rank.start_us[devices],
        duration_us=rank.duration_us[devices],
        release_us=np.where(pinned, rank.start_us[devices], -np.inf),
    )
    return nodes, resources or (f"{rank.rank}/{MAIN_THREAD}",)  # of the marks of steps


def with_marks(
    rank: RankTrace, links: Links, pieces: Pieces, last_node: Ints, nodes: Nodes, first_device: int
) -> tuple[StepMarks, Nodes, Edges]:
    """Append a mark at each step start and end; with the edges into them.

    `last_node` is the node that a piece ends with (itself, or its return). A step's bounds follow
    the piece of the main thread that ends there, or the call across it; the end of a window
    follows everything.
    """
    steps = links.steps
    ends_of_threads = [last_node[high - 1] for _, high in equal_runs(pieces.thread)]
    device = np.arange(first_device, first_device + len(links.device_rows))
    order = device[np.lexsort((nodes.end_us[device], nodes.resource[device]))]
    ends_of_streams = [order[high - 1] for _, high in equal_runs(nodes.resource[order])]
    ends = np.array([*ends_of_threads, *ends_of_streams], np.int64)
    main = np.flatnonzero(
        np.isin(pieces.thread, [t for t, r in links.roles.items() if r == MAIN_THREAD])
    )
    when = np.stack([steps.start_us, steps.end_us], axis=1).reshape(-1)
    sources: list[Ints] = []
    start_us = pieces.start_us[main]
    for position, time in enumerate(when):
        if steps.is_window and position % 2:
            sources.append(ends)
            continue
        at = int(np.searchsorted(start_us, time, side="left")) - 1
        begun = at >= 0 and pieces.end_us[main[at]] >= time
        sources.append(last_node[main[at : at + 1]] if begun else np.zeros(0, np.int64))
    counts = np.array([len(result) for result in sources], np.int64)
    ids = len(nodes) + np.arange(len(when))
    nodes = nodes.with_more(
        len(when),
        kind=NodeKind.MARK,
        cause=Cause.END_OF_STEP,
        rank=rank.rank,
        resource=0,
        start_us=when,
        release_us=np.where(counts > 0, -np.inf, when),
    )
    marks = StepMarks(np.full(len(steps), rank.rank), steps.names, ids[::2], ids[1::2])
    source = np.concatenate([*sources, np.zeros(0, np.int64)])
    return marks, nodes, Edges.of(source, np.repeat(ids, counts), EdgeKind.PROGRAM)


ROUNDING_US = 1e-3


def with_measured_waits(graph: ExecutionGraph) -> ExecutionGraph:
    """`graph` (of one rank, as measured) in which each unexplained wait is a node of its own.

    A wait is unexplained where the last predecessor explains less than it took: a lag beyond what
    is plausible for its kind of edge; on a thread, whose pieces leave no hole, any. Dropping that
    time would predict a step that never was; so a node of kind `wait` and the measured length
    stands there, in the scope `unexplained`, which no other what-if scales. What waits for work
    from before the window has no launch call in the file.
    """
    nodes, edges = graph.nodes_, graph.edges_
    ready = edges.ready_us(nodes.start_us, nodes.duration_us)
    last = edges.latest(ready)
    late, kind = edges.target[last], edges.kind[last]
    wait_us = nodes.start_us[late] - np.maximum(ready[last], nodes.release_us[late])
    limit_us = np.array([PLAUSIBLE_LAG_US[each][1] for each in EdgeKind])
    limit_us[EdgeKind.PROGRAM] = ROUNDING_US
    gap_us = nodes.start_us[late] - ready[last] + edges.lag_us[last]
    chosen = (wait_us > ROUNDING_US) & (gap_us > limit_us[kind])
    late, kind, wait_us = late[chosen], kind[chosen], wait_us[chosen]
    if not len(late):
        return graph
    cause = np.full(len(late), int(graph.unknown))
    for node_kind, known in CAUSE_ON_THREAD.items():
        cause[(kind == EdgeKind.PROGRAM) & (nodes.kind[late] == node_kind)] = known
    waits = len(graph) + np.arange(len(late))
    grown = nodes.with_more(
        len(late),
        kind=NodeKind.WAIT,
        cause=cause,
        scope=np.where(np.isin(cause, NOT_EXPLAINED), Scope.UNEXPLAINED, Scope.NONE),
        rank=nodes.rank[late],
        resource=nodes.resource[late],
        start_us=nodes.start_us[late] - wait_us,
        duration_us=wait_us,
        release_us=nodes.release_us[late],
    )
    wait_of = np.full(len(graph), NONE, np.int64)
    wait_of[late] = waits
    before = edges.where(wait_of[edges.target] != NONE)
    before = replace(before, target=wait_of[before.target].astype(np.int32))
    return replace(
        graph,
        nodes_=grown,
        edges_=edges.and_(before, Edges.of(waits, late, EdgeKind.PROGRAM)),
        labels=(*graph.labels, *(f"{WAIT_BEFORE}{graph.labels[n]}" for n in late.tolist())),
        annotations=(*graph.annotations, *(graph.annotations[n] for n in late.tolist())),
    )
