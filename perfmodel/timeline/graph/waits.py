"""What host threads waited for: calls, copies, dropped synchronisations, threads, the queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, quantile
from perfmodel.timeline.graph.host import ALLOCATOR, ELAPSED, LAUNCH, PIECE, SYNC, Pieces
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.trace.categories import (
    COPY_CALL,
    DEVICE_FREE_CALL,
    DEVICE_TO_PAGEABLE_COPY,
    WAITING_NAME,
    Category,
)
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, equal_runs, stream_keys
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

ROUNDING_US = 3.0
"""Neighbouring events of files with whole microseconds overlap by up to this much."""
MIN_WAITED_FRAC = 0.3
"""A gap of the main thread is a wait for another thread that works for this much of it."""


@dataclass
class Waits:
    """How waiting changes the pieces: when the work of a piece begins, what it takes by itself,
    and the nodes that stand for the return from a wait inside a piece.

    `edges` are (source, target, kind); a device row is written as `~row`, the return of piece
    `p` as `len(pieces) + p`, a piece as itself.
    """

    start_us: Floats
    duration_us: Floats
    cause: Ints
    returns: dict[int, tuple[float, float, Cause]]
    """Piece to (start, duration, cause) of the return that follows it on its thread."""
    edges: list[tuple[int, int, EdgeKind]]
    woken: set[int]
    """First pieces after a sleep: another thread's hand-over starts them, not the clock."""


def _host_collectives(rank: RankTrace, pieces: Pieces, waits: Waits, main: Ints) -> None:
    """Collectives on worker threads (Gloo): issued by the main thread, waited for by it later."""
    start_us = pieces.start_us[main]
    for piece in np.flatnonzero(pieces.cause == Cause.COMMUNICATION).tolist():
        before = piece - 1
        same_thread = piece > 0 and pieces.thread[before] == pieces.thread[piece]
        if same_thread and pieces.cause[before] == Cause.HOST_T1:
            waits.duration_us[before] = 0.0
        waits.woken.add(piece)
        issuing = int(np.searchsorted(start_us, pieces.start_us[piece], "right")) - 2
        if issuing >= 0:
            waits.edges.append((int(main[issuing]), piece, EdgeKind.HOST_COLLECTIVE))
        over = pieces.end_us[piece]
        at = int(main[max(np.searchsorted(start_us, over, "right") - 1, 0)])
        waiting = pieces.end_us[at] > over and any(
            WAITING_NAME.search(rank.text(int(row)))
            for row in (pieces.row[at], pieces.annotation[at])
            if row >= 0
        )
        if waiting and pieces.call[at] == PIECE:
            over = max(over, waits.returns[at][0] if at in waits.returns else over)
            waits.duration_us[at] = 0.0
            after = float(pieces.end_us[at] - over)
            waits.returns[at] = (float(over), after, Cause(int(waits.cause[at])))
            waits.edges.append((piece, len(pieces.thread) + at, EdgeKind.HAND_BACK))


def _hand_overs(
    pieces: Pieces, waits: Waits, gaps: Ints, on_thread: range, asleep: Mask, role: str
) -> None:
    """The main thread sleeps while a thread that it woke works (backward): it waits, not works.

    An autograd thread may wake the main thread for a task of its own and work on meanwhile;
    another thread counts as woken only when it sleeps before and after.
    """
    busy = on_thread.start + np.flatnonzero(~asleep[on_thread.start : on_thread.stop])
    if not len(busy):
        return
    start, end = pieces.start_us[busy], pieces.end_us[busy]
    begun, over = pieces.start_us[gaps], pieces.end_us[gaps]
    first = np.searchsorted(end, begun, side="right")
    at = np.minimum(first, len(busy) - 1)
    first += (start[at] < begun) & (end[at] > begun) & (end[at] <= begun + ROUNDING_US)
    past = np.searchsorted(start, over, side="left")
    past -= (past > 0) & (end[past - 1] > over + ROUNDING_US)

    def sleeps(piece: int) -> bool:
        """Whether the thread sleeps in a piece, or has none there."""
        return piece not in on_thread or bool(asleep[piece])

    for g in np.flatnonzero(past > first).tolist():
        piece, woken, last = int(gaps[g]), int(busy[first[g]]), int(busy[past[g] - 1])
        worked = min(pieces.end_us[last], over[g]) - max(pieces.start_us[woken], begun[g])
        if worked < MIN_WAITED_FRAC * (over[g] - begun[g]):
            continue
        was_awake = pieces.start_us[woken] < begun[g] - ROUNDING_US or not sleeps(woken - 1)
        stays_awake = not sleeps(last + 1)
        if role != AUTOGRAD_THREAD and (was_awake or stays_awake):
            continue
        if was_awake:
            waits.duration_us[piece] = 0.0
        else:
            before = max(pieces.start_us[woken] - begun[g], 0.0)
            waits.duration_us[piece] = min(waits.duration_us[piece], before)
            waits.edges.append((piece, woken, EdgeKind.HAND_OVER))
            waits.woken.add(woken)
            if woken - 1 in on_thread:
                waits.duration_us[woken - 1] = 0.0
        after = max(float(over[g] - pieces.end_us[last]), 0.0)
        if piece in waits.returns:
            after = min(after, waits.returns[piece][1])
        waits.returns[piece] = (float(over[g]) - after, after, Cause.HOST_T1)
        waits.edges.append((last, len(pieces.thread) + piece, EdgeKind.HAND_BACK))


CLOCK_TOLERANCE_US = 25.0
"""The clocks of host and device in one trace differ by up to this much."""
HIDDEN_SYNC_GAP_US = 1000.0
"""A silence this long may be a wait whose call was not recorded."""
HIDDEN_SYNC_RETURN_US = 500.0
POLLING_RETURN_US = 100.0
"""A thread that polls for what it launched last returns this soon after it ended."""
QUEUE_DEPTHS = range(900, 1100)
"""How many operations ahead a launch queue may be full."""
QUEUE_RETURN_US = 12.0
"""A call that waited for a place returns this soon after the operation that made it."""
MIN_QUEUE_HITS, MIN_QUEUE_HIT_FRAC = 10, 0.05
"""How many of the long launch calls must fit a depth before it is believed."""
SLOW_LAUNCH_FACTOR = 2.0
"""A call above this many times an unblocked one may have gone on after its kernel began."""
BLOCKED_LAUNCH_FACTOR = 4.0
_UNBLOCKED_QUANTILE = 0.05
MAX_SYNC_CALL_US = 10.0
"""A synchronising call that has nothing to wait for takes no longer than this."""


def find_waits(rank: RankTrace, links: Links, pieces: Pieces) -> Waits:
    taken_us = pieces.end_us - pieces.start_us
    waits = Waits(pieces.start_us.copy(), taken_us, pieces.cause.copy(), {}, [], set())
    if not len(pieces.thread):
        return waits
    _synchronising_calls(rank, links, pieces, waits)
    _hidden_synchronisations(rank, links, pieces, waits)
    _blocking_copies(rank, links, pieces, waits)
    _launch_queue(rank, links, pieces, waits)
    _early_kernels(rank, links, pieces, waits)
    runs = [(links.roles[int(pieces.thread[at])], at, end) for at, end in equal_runs(pieces.thread)]
    mains = [np.arange(low, high) for role, low, high in runs if role == MAIN_THREAD]
    if not mains:
        return waits
    main = np.concatenate(mains)
    _host_collectives(rank, pieces, waits, main)
    asleep = (pieces.cause == Cause.HOST_T1) & (pieces.call == PIECE)
    gaps = main[asleep[main] & ~np.isin(main, list(waits.returns))]
    for role, low, high in runs:
        if role != MAIN_THREAD and not (pieces.cause[low:high] == Cause.COMMUNICATION).any():
            _hand_overs(pieces, waits, gaps, range(low, high), asleep, role)
    return waits


def _synchronising_calls(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """Synchronise calls wait for a stream or all of them; freeing device memory for all."""
    syncs = np.flatnonzero(pieces.call == SYNC)
    call_us = min(float(waits.duration_us[syncs].min(initial=np.inf)), MAX_SYNC_CALL_US)
    stream_of_call = {
        int(rank.correlation[row]): int(rank.sync_stream[row])
        for row in rank.of(Category.CUDA_SYNC)
        if rank.sync_stream[row] >= 0
    }
    end_us, devices, launch = rank.end_us, links.device_rows, links.device_launch
    launched_us = np.where(launch >= 0, rank.start_us[launch], -np.inf)
    stream = stream_keys(rank, devices)
    order = np.lexsort((launched_us, stream))
    runs = [order[low:high] for low, high in equal_runs(stream[order])]
    queues = [(launched_us[run], devices[run]) for run in runs]  # per stream, as launched
    launched_by = np.full(len(rank), NONE, np.int32)
    launched_by[devices] = launch
    for piece in np.flatnonzero((pieces.call == SYNC) | (pieces.call == ALLOCATOR)).tolist():
        row = int(pieces.row[piece])
        name = rank.text(row)
        begun, returned = pieces.start_us[piece], pieces.end_us[piece]
        frees = pieces.call[piece] == ALLOCATOR
        if frees and not DEVICE_FREE_CALL.match(name):
            continue
        before = [
            int(rows[at - 1])
            for when_us, rows in queues
            if (at := int(np.searchsorted(when_us, begun, side="right")))
        ]
        before = [r for r in before if pieces.of_call(launched_by[r]) != piece]
        last = _can_have_ended_call(before, end_us, returned)
        if not frees and (known := stream_of_call.get(int(rank.correlation[row]))) is not None:
            last = [r for r in before if rank.stream[r] == known] or last
        if not last:
            continue
        awaited = max(last, key=lambda r: end_us[r])
        waited = end_us[awaited] > begun
        everything = frees or "Device" in name or "Ctx" in name
        if not waited and not everything:
            awaited = max(last, key=lambda r: rank.start_us[r])
        if frees:
            waits.start_us[piece] = max(begun, min(end_us[awaited], returned))
            waits.duration_us[piece] = returned - waits.start_us[piece]
        elif waited:
            waits.duration_us[piece] = min(call_us, waits.duration_us[piece])
            waits.start_us[piece] = returned - waits.duration_us[piece]
        kind = EdgeKind.ALLOCATOR if frees else EdgeKind.HOST_SYNC
        for r in last if everything else [awaited]:
            waits.edges.append((~r, int(piece), kind))


def _can_have_ended_call(rows: list[int], end_us: Floats, returned_us: float) -> list[int]:
    """Those of `rows` that can have set a call free that returned then.

    What ended within the clocks' tolerance after the return counts where nothing ended that
    shortly before it.
    """
    ended = [row for row in rows if end_us[row] <= returned_us]
    if any(end_us[row] >= returned_us - CLOCK_TOLERANCE_US for row in ended):
        return ended
    return [row for row in rows if end_us[row] <= returned_us + CLOCK_TOLERANCE_US]


def _hidden_synchronisations(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """Long silences that end with an operation: the thread waited for it, in a call that the
    profiler dropped (before `cudaEventElapsedTime`) or by polling for what it launched last."""
    long = pieces.end_us - pieces.start_us >= HIDDEN_SYNC_GAP_US
    gaps = np.flatnonzero(long & (pieces.call == PIECE))
    if not len(gaps) or not len(links.device_rows):
        return
    by_end = links.device_rows[np.argsort(rank.end_us[links.device_rows], kind="stable")]
    ends_us = rank.end_us[by_end]
    # Per piece: what its thread's last launch call before it started, of several the last to end.
    known = np.flatnonzero(links.device_launch >= 0)
    known = known[np.argsort(rank.end_us[links.device_rows[known]], kind="stable")]
    piece = pieces.row_piece[links.device_launch[known]]
    row = np.full(len(pieces.thread), NONE, np.int64)
    row[piece[piece >= 0]] = links.device_rows[known[piece >= 0]]
    last = np.maximum.accumulate(np.where(row >= 0, np.arange(len(row)), NONE))
    same = (last >= 0) & (pieces.thread[last] == pieces.thread)
    launched = np.where(same, row[last], NONE)
    for gap in gaps.tolist():
        returned, after, awaited = float(pieces.end_us[gap]), gap + 1, NONE
        if after < len(pieces.thread) and pieces.thread[after] == pieces.thread[gap]:
            at = int(np.searchsorted(ends_us, returned + CLOCK_TOLERANCE_US, side="right")) - 1
            if pieces.call[after] == ELAPSED and at >= 0:
                awaited = (
                    int(by_end[at]) if returned - ends_us[at] <= HIDDEN_SYNC_RETURN_US else NONE
                )
        own = int(launched[gap])
        if awaited == NONE and own != NONE and rank.end_us[own] > pieces.start_us[gap]:
            late_us = returned - float(rank.end_us[own])
            awaited = own if -CLOCK_TOLERANCE_US <= late_us <= POLLING_RETURN_US else NONE
        if awaited != NONE:
            waits.duration_us[gap] = 0.0
            waits.returns[gap] = (returned, 0.0, Cause.HIDDEN_SYNC)
            waits.edges.append((~awaited, len(pieces.thread) + gap, EdgeKind.HIDDEN_SYNC))


def _blocking_copies(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """Copies that the call waits for: device to pageable memory, and whatever is seen to wait."""
    is_copy = (links.device_launch >= 0) & (rank.category[links.device_rows] == Category.MEMCPY)
    launches = links.device_launch[is_copy]
    if not len(launches):
        return
    is_copy_call = rank.name_matches(COPY_CALL)
    pageable = rank.name_contains(DEVICE_TO_PAGEABLE_COPY)
    issue_us = _unblocked_us(pieces, waits)
    for device, launch in zip(links.device_rows[is_copy].tolist(), launches.tolist(), strict=True):
        piece = pieces.of_call(launch)
        if piece == NONE or not is_copy_call[launch]:
            continue
        returned = pieces.end_us[piece]
        waited = returned >= rank.end_us[device] and waits.duration_us[piece] > (
            BLOCKED_LAUNCH_FACTOR * issue_us
        )
        if not (waited or pageable[device]) or returned + ROUNDING_US < rank.end_us[device]:
            continue
        waits.duration_us[piece] = min(
            waits.duration_us[piece],
            issue_us,
            max(rank.start_us[device] - pieces.start_us[piece], 0),
        )
        waits.returns[piece] = (returned, 0.0, Cause.BLOCKING_CALL)
        waits.edges.append((~int(device), len(pieces.thread) + piece, EdgeKind.BLOCKING_COPY))


def _launch_queue(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """A launch call returns when the device has taken an operation a queue's length earlier."""
    linked = np.flatnonzero(links.device_launch >= 0)
    order = linked[np.argsort(rank.start_us[links.device_launch[linked]], kind="stable")]
    launch, device = links.device_launch[order], links.device_rows[order]
    first = np.sort(np.unique(launch, return_index=True)[1])
    launch, device = launch[first], device[first]
    if len(launch) <= QUEUE_DEPTHS[0]:
        return
    returned, ends = rank.end_us[launch], rank.end_us[device]
    typical = _unblocked_us(pieces, waits)
    long = np.flatnonzero(rank.duration_us[launch] > BLOCKED_LAUNCH_FACTOR * typical)
    hits_of = {}
    for depth in QUEUE_DEPTHS:
        late = long[long >= depth]
        lag = returned[late] - ends[late - depth]
        hits_of[depth] = int(((lag >= 0) & (lag < QUEUE_RETURN_US)).sum())
    depth, hits = max(hits_of.items(), key=lambda item: item[1])
    if hits < max(MIN_QUEUE_HITS, MIN_QUEUE_HIT_FRAC * len(long)):
        return
    starts = rank.start_us[launch]
    for piece in np.flatnonzero(pieces.call == LAUNCH):
        position = int(np.searchsorted(starts, pieces.start_us[piece], side="left"))
        if position < depth:
            continue
        source = int(device[position - depth])
        lag = pieces.end_us[piece] - rank.end_us[source]
        if lag < -ROUNDING_US:
            continue
        waits.edges.append((~source, int(piece), EdgeKind.LAUNCH_QUEUE))
        if waits.duration_us[piece] > BLOCKED_LAUNCH_FACTOR * typical and lag < QUEUE_RETURN_US:
            waits.duration_us[piece] = typical
            waits.start_us[piece] = pieces.end_us[piece] - typical


def _early_kernels(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """Launch calls that went on after their kernel had begun: issue first, the rest after it."""
    typical = _unblocked_us(pieces, waits)
    linked = np.flatnonzero(links.device_launch >= 0)
    launch = links.device_launch[linked]
    slow = linked[rank.duration_us[launch] > SLOW_LAUNCH_FACTOR * typical]
    devices, calls = links.device_rows[slow].tolist(), links.device_launch[slow].tolist()
    for device, launch in zip(devices, calls, strict=True):
        piece = pieces.of_call(launch)
        if piece == NONE or piece in waits.returns or pieces.call[piece] != LAUNCH:
            continue
        issued = max(rank.start_us[device] - waits.start_us[piece], 0.0)
        rest = waits.duration_us[piece] - max(issued, typical)
        if rest > max(typical, ROUNDING_US):
            waits.duration_us[piece] -= rest
            waits.returns[piece] = (float(pieces.end_us[piece]) - rest, rest, Cause.HOST_T4)


def _unblocked_us(pieces: Pieces, waits: Waits) -> float:
    """What a launch call takes that waits for nothing: a low quantile, since most may wait."""
    launches = waits.duration_us[pieces.call == LAUNCH]
    return quantile(launches, _UNBLOCKED_QUANTILE) if len(launches) else 0.0
