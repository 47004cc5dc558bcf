"""What host threads waited for of one another: collectives on worker threads, and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct
from perfmodel.graph.host import PIECE, Pieces
from perfmodel.graph.kinds import Cause, EdgeKind
from perfmodel.trace.categories import WAITING_NAME
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links, equal_runs
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


def add_thread_waits(rank: RankTrace, links: Links, pieces: Pieces, waits: Waits) -> None:
    """Add to `waits` what the main thread waited for of others, and what woke them."""
    main = np.flatnonzero(
        np.isin(pieces.thread, [t for t, r in links.roles.items() if r == MAIN_THREAD])
    )
    if not len(main):
        return
    _host_collectives(rank, pieces, waits, main)
    asleep = (pieces.cause == Cause.HOST_T1) & (pieces.call == PIECE)
    gaps = main[asleep[main] & ~np.isin(main, list(waits.returns))]
    for low, high in equal_runs(pieces.thread):
        role = links.roles[int(pieces.thread[low])]
        if role != MAIN_THREAD and not (pieces.cause[low:high] == Cause.COMMUNICATION).any():
            _hand_overs(pieces, waits, gaps, range(low, high), asleep, role)


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


def _gaps_around(pieces: Pieces, gaps: Ints, start_us: Floats, end_us: Floats) -> Ints:
    """Those of `gaps` (in order of time) that may meet one of these intervals; all of them where
    looking at each costs no more."""
    if len(gaps) <= len(start_us):
        return gaps
    low = np.searchsorted(pieces.end_us[gaps], start_us - ROUNDING_US, side="left")
    high = np.searchsorted(pieces.start_us[gaps], end_us + ROUNDING_US, side="right")
    count = high - low
    if count.sum() > len(gaps):
        return gaps
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return gaps[distinct(np.repeat(low, count) + within)]


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
    gaps = _gaps_around(pieces, gaps, start, end)
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
