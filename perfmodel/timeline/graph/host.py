"""Host threads cut into pieces: overheads T1 to T5, launch calls, synchronising calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Keys, distinct
from perfmodel.timeline.graph.kinds import Cause, NodeKind
from perfmodel.trace.categories import (
    ALLOCATOR_CALL,
    DATA_LOADING_NAME,
    ELAPSED_TIME_CALL,
    HOST_COLLECTIVE_NAME,
    INPUT_WAIT_NAME,
    LAUNCH_CALL,
    SYNC_CALL,
    Category,
)
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import (
    Links,
    Nesting,
    by_thread,
    containing_index,
    equal_runs,
    outermost,
    thread_keys,
)
from perfmodel.trace.window import MAIN_THREAD

PIECE, LAUNCH = int(NodeKind.HOST), int(NodeKind.LAUNCH)
SYNC, ALLOCATOR = int(NodeKind.SYNC), int(NodeKind.ALLOCATOR)
"""Kinds of calls, by the numbers of the `NodeKind` that each becomes."""
ELAPSED = len(NodeKind)
"""A call for the time between two events: host work, behind a wait that was not recorded."""
_CALLS = {
    SYNC: SYNC_CALL,
    ALLOCATOR: ALLOCATOR_CALL,
    ELAPSED: ELAPSED_TIME_CALL,
    LAUNCH: LAUNCH_CALL,
}
"""By what their names say; the last that matches counts."""


@dataclass(frozen=True)
class Pieces:
    """The threads of one rank as consecutive pieces, by thread, then time.

    The pieces of a thread cover it from its first to its last event without a hole.
    """

    thread: Ints
    start_us: Floats
    end_us: Floats
    cause: Ints
    """`Cause` of a piece of host work (T1 to T5, an operator without launches, data loading), or
    `COMMUNICATION` for a collective on a host thread (Gloo)."""
    call: Ints
    """`PIECE`, or the kind of call: `LAUNCH`, `SYNC`, `ALLOCATOR`, `ELAPSED`."""
    row: Ints
    """Row of the call, else of the operator, else (a gap) of the operator that follows; or -1."""
    annotation: Ints
    """Row of the innermost annotation around the piece, or -1."""
    row_piece: Ints
    """Per row of the trace: the piece of the call that it is, or -1."""

    def of_call(self, row: int) -> int:
        """The piece of the call in a row, or -1, also for no row (-1)."""
        return int(self.row_piece[row]) if row >= 0 else NONE


def cut_threads(rank: RankTrace, links: Links) -> Pieces:
    """Cut every host thread at operators, launches, synchronising and allocator calls, steps."""
    runtime, kind_of_row = rank.of(Category.RUNTIME), np.zeros(len(rank), np.int8)
    kind_of_row[links.device_launch[links.device_launch >= 0]] = LAUNCH
    for kind, name in _CALLS.items():
        kind_of_row[rank.of(Category.RUNTIME, named=name)] = kind
    calls = outermost(rank, runtime[kind_of_row[runtime] > 0])
    annotations = rank.of(Category.ANNOTATION)
    collectives = rank.of(Category.ANNOTATION, named=HOST_COLLECTIVE_NAME)
    ops = outermost(rank, np.sort(np.concatenate([links.top_ops, collectives])))
    if not links.roles:
        none, never = np.zeros(0, np.int32), np.zeros(0)
        no_piece = np.full(len(rank), NONE, np.int32)
        return Pieces(none, never, never, none, none, none, none, no_piece)
    waits = outermost(rank, rank.of(Category.PYTHON, named=INPUT_WAIT_NAME))
    thread, start, end, cause, call, row = _cut(rank, links, ops, calls, waits, kind_of_row)
    is_collective = np.isin(row, collectives) & (cause != Cause.HOST_T1)
    cause[is_collective] = Cause.COMMUNICATION
    annotation = Nesting(rank, annotations).around(thread, (start + end) / 2).astype(np.int32)
    loading = rank.name_contains(DATA_LOADING_NAME)
    in_loading = (annotation >= 0) & loading[np.maximum(annotation, 0)] & (call == PIECE)
    cause[in_loading] = Cause.DATA_LOADING
    row_piece = _pieces_of_calls(rank, links, calls, thread, end, call, row)
    return Pieces(thread, start, end, cause, call, row, annotation, row_piece)


def _pieces_of_calls(
    rank: RankTrace, links: Links, calls: Ints, thread: Ints, end: Floats, call: Ints, row: Ints
) -> Ints:
    """Per row, the piece that the call in it stands in, or -1.

    A call inside another (driver in runtime) belongs to the outer one's piece; a call of no length
    (whole microseconds) has none and belongs to the piece that ends where it stands.
    """
    call_pieces = np.flatnonzero(call != PIECE)
    result = np.full(len(rank), NONE, np.int32)
    result[row[call_pieces]] = call_pieces
    is_inner = np.zeros(len(rank), np.bool_)
    is_inner[links.device_launch[links.device_launch >= 0]] = True
    is_inner[row[call_pieces]] = False
    inner = by_thread(rank, np.flatnonzero(is_inner))
    outer = by_thread(rank, calls[rank.duration_us[calls] > 0])
    at = containing_index(rank, inner, outer)
    for r, box in zip(inner[at >= 0].tolist(), outer[at[at >= 0]].tolist(), strict=True):
        if rank.duration_us[r] > 0 and result[box] >= 0:
            result[r] = result[box]
    spans = {int(thread[low]): (low, high) for low, high in equal_runs(thread)}
    for r in inner[rank.duration_us[inner] == 0].tolist():
        low, high = spans.get(int(rank.thread[r]), (0, 0))
        before = int(np.searchsorted(end[low:high], rank.start_us[r], side="right")) - 1
        if before >= 0:
            result[r] = low + before
    return result


def _cut(
    rank: RankTrace, links: Links, ops: Ints, calls: Ints, waits: Ints, kind_of_row: Ints
) -> tuple[np.ndarray, ...]:
    """Thread, start, end, cause, kind of call and row of every piece.

    All threads at once, by keys of thread and time.
    """
    first, last = _launch_span(rank, ops, calls[kind_of_row[calls] == LAUNCH])
    threads = np.array(list(links.roles), rank.thread.dtype)
    by_id = np.argsort(threads)

    def place(rows: Ints) -> Ints:
        found: Ints = by_id[np.searchsorted(threads[by_id], rank.thread[rows])]
        return found

    order = np.argsort(place(ops), kind="stable")
    ops, first, last = ops[order], first[order], last[order]
    calls = calls[np.argsort(place(calls), kind="stable")]
    main = next(at for at, role in enumerate(links.roles.values()) if role == MAIN_THREAD)
    waits = waits[rank.thread[waits] == threads[main]]
    op_start = thread_keys(place(ops), rank.start_us[ops])
    op_end = thread_keys(place(ops), rank.end_us[ops])
    call_start, call_end = _disjoint(rank, calls, place(calls))
    wait_start, wait_end = (
        thread_keys(np.full(len(waits), main), us[waits]) for us in (rank.start_us, rank.end_us)
    )
    bounds_us = _bounds_us(rank, links, threads[main], ops)
    bounds = thread_keys(np.full(len(bounds_us), main), bounds_us)
    edges = np.concatenate([op_start, op_end, wait_start, wait_end, bounds])
    at = np.searchsorted(call_start, edges, side="right") - 1
    in_call = edges > np.append(call_start, np.inf)[at]
    in_call &= edges < np.append(call_end, -np.inf)[at]
    edges = distinct(np.concatenate([edges[~in_call], call_start, call_end]))
    pieces = np.flatnonzero(edges.real[1:] == edges.real[:-1])
    on, start, end = edges.real[pieces].astype(np.int64), edges.imag[pieces], edges.imag[pieces + 1]
    middle = thread_keys(on, (start + end) / 2)
    op = _interval_at(middle, op_start, np.maximum.accumulate(op_end))
    call = _interval_at(middle, call_start, call_end)
    is_call = call >= 0
    kind = np.append(kind_of_row[calls], PIECE)[call]
    first_us, last_us = np.append(first, np.inf)[op], np.append(last, -np.inf)[op]
    is_waiting = (_interval_at(middle, wait_start, wait_end) >= 0) & (op < 0)
    cause = np.select(
        [
            is_call & (kind != ELAPSED),
            is_waiting,
            op < 0,
            ~np.isfinite(first_us),
            end <= first_us,
            start >= last_us,
        ],
        [
            *(Cause.HOST_T4, Cause.WAITING_FOR_INPUT, Cause.HOST_T1),
            *(Cause.HOST_OP_WITHOUT_LAUNCH, Cause.HOST_T2, Cause.HOST_T3),
        ],
        Cause.HOST_T5,
    )
    following = np.searchsorted(op_start, thread_keys(on, start), side="left")
    following[np.append(op_start.real, NONE)[following] != on] = NONE
    op = np.where(op >= 0, op, following)
    row = np.where(is_call, np.append(calls, NONE)[call], np.append(ops, NONE)[op])
    return (
        threads[on],
        *(start, end, cause.astype(np.int8), kind.astype(np.int8), row.astype(np.int32)),
    )


def _bounds_us(rank: RankTrace, links: Links, main: int, ops: Ints) -> Floats:
    """Times at which the main thread is cut: bounds of steps; of a window with operators, when
    the last of its events ends."""
    main_ops = ops[rank.thread[ops] == main]
    if not links.steps.is_window or not len(main_ops):
        return np.concatenate([links.steps.start_us, links.steps.end_us])
    events = rank.of(Category.ANNOTATION, Category.PYTHON)
    ends_us = rank.end_us[events[rank.thread[events] == main]]
    last_us: Floats = ends_us.max(initial=rank.end_us[main_ops[-1]], keepdims=True)
    return last_us


def _disjoint(rank: RankTrace, calls: Ints, place: Ints) -> tuple[Keys, Keys]:
    """Starts and ends of calls, each from the end of the one before it on its thread at least."""
    start = thread_keys(place, rank.start_us[calls])
    end = np.maximum.accumulate(thread_keys(place, rank.end_us[calls]))
    same = end.real[1:] == end.real[:-1]
    start[1:] = np.where(same, np.maximum(start[1:], end[:-1]), start[1:])
    return start, end


def _interval_at(time: Keys, start: Keys, end: Keys) -> Ints:
    """Index of the last interval that began at or before each time and still lasts, or -1."""
    if not len(start):
        return np.full(len(time), NONE, np.int64)
    at = np.searchsorted(start, time, side="right") - 1
    held = np.maximum(at, 0)
    lasts = (time < end[held]) & (time.real == end.real[held])
    return np.where((at >= 0) & lasts, at, NONE)


def _launch_span(rank: RankTrace, ops: Ints, launches: Ints) -> tuple[Floats, Floats]:
    """Per operator: start of its first launch call and end of its last, infinite without one."""
    first, last = np.full(len(ops), np.inf), np.full(len(ops), -np.inf)
    owner = containing_index(rank, launches, ops)
    owned = owner >= 0
    np.minimum.at(first, owner[owned], rank.start_us[launches[owned]])
    np.maximum.at(last, owner[owned], rank.end_us[launches[owned]])
    return first, last
