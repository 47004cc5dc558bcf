"""What device operations waited for: the order of their stream, other streams, copies.

Streams are queues, so an operation starts when all before it have ended. Recorded times break that
in two ways: timestamps are off by a few microseconds, and the branches of a graph launch run at
the same time under one stream number. Both keep their order here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct, distinct_pairs, median
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import Edges
from perfmodel.timeline.graph.waits import ROUNDING_US
from perfmodel.trace.categories import STREAM_WAIT_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, alike, equal_runs, stream_keys

MAX_BRANCHES = 16
"""Branches of one graph launch that are distinguished; of more, those that end last."""


def stream_edges(rank: RankTrace, links: Links) -> Edges:
    """Every operation behind all those before it on its stream that nothing else is behind.

    One edge each, where operations follow one another (within `ROUNDING_US`); else what overlaps is
    the share of the source that is left when the target starts. As of all edges here, `source` and
    `target` are positions in `Links.device_rows`.
    """
    rows = links.device_rows
    order = np.lexsort((rank.end_us[rows], rank.start_us[rows], stream_keys(rank, rows)))
    start_us, end_us = rank.start_us[rows[order]], rank.end_us[rows[order]]
    parts: list[tuple[Ints, Ints]] = []
    for low, high in equal_runs(stream_keys(rank, rows[order])):
        source, target = _stream_order(start_us[low:high], end_us[low:high])
        parts.append((source + low, target + low))
    if not parts:
        return Edges.of(rows[:0], rows[:0], EdgeKind.STREAM)
    source, target = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    overlap_us = end_us[source] - start_us[target]
    taken_us = end_us[source] - start_us[source]
    overlaps = (overlap_us > ROUNDING_US) & (taken_us > 0)
    share = np.where(overlaps, overlap_us / np.where(overlaps, taken_us, 1.0), 0.0)
    return Edges.of(
        order[source], order[target], EdgeKind.STREAM, overlap_frac=share.clip(0.0, 1.0)
    )


def _stream_order(start_us: Floats, end_us: Floats) -> tuple[Ints, Ints]:
    """Edges among the operations of one stream, in order of their starts."""
    latest = np.maximum.accumulate(end_us)
    begins = np.append(True, start_us[1:] >= latest[:-1] - ROUNDING_US)
    first = np.flatnonzero(begins)
    size = np.diff(np.append(first, len(start_us)))
    alone = size[np.cumsum(begins) - 1] == 1
    plain = np.flatnonzero(begins[1:] & alone[:-1])
    source, target = plain.tolist(), (plain + 1).tolist()
    # Among operations that overlap in turn, and from them to the one behind.
    for begin, count in zip(first[size > 1].tolist(), size[size > 1].tolist(), strict=True):
        running, past = [begin], begin + count
        for at in range(begin + 1, min(past + 1, len(start_us))):
            source += running
            target += [at] * len(running)
            over = at == past
            running = [r for r in running if not over and end_us[r] - start_us[at] > ROUNDING_US]
            running.append(at)
            if len(running) > MAX_BRANCHES:
                running.remove(min(running, key=lambda r: end_us[r]))
    return np.array(source, np.int64), np.array(target, np.int64)


LATE_START_US = 4.0
"""A start this much later than the known dependencies allow has another reason."""
MAX_WAIT_GAP_US = 25.0
"""A waiting operation starts at most this long after what it waited for."""
MAX_TAIL_US = 2000.0
MAX_TAIL_FRAC = 0.5
"""A kernel held back by a full device starts when the last blocks of the other one are placed:
within this time and share of its end."""
MIN_WAVES = 1.0
"""A kernel holds others back when its blocks fill the device at least once."""


class _OtherStreams:
    """Which operations of other streams ended around the start of an operation."""

    def __init__(self, rank: RankTrace, links: Links) -> None:
        rows = links.device_rows
        self.start, self.end = rank.start_us[rows], rank.end_us[rows]
        self.stream = stream_keys(rank, rows)
        self._by_end = np.argsort(self.end, kind="stable")
        self._sorted_end = self.end[self._by_end]

    def ended_near(self, target: int, after_us: float) -> Ints:
        """Those that began before `target` and ended at most `after_us` after its start, in order
        of their ends."""
        at = self.start[target]
        low = np.searchsorted(self._sorted_end, at - MAX_WAIT_GAP_US, side="left")
        high = np.searchsorted(self._sorted_end, at + after_us, side="right")
        near = self._by_end[low:high]
        other: Ints = near[(self.stream[near] != self.stream[target]) & (self.start[near] < at)]
        return other


def event_waits(rank: RankTrace, links: Links, is_collective: Mask, delay_us: Floats) -> Edges:
    """Waits set by `cudaStreamWaitEvent`: as `cuda_sync` events name them, else inferred.

    `delay_us` is, per device row, how much later it started than its known dependencies explain.
    A late start after such a call is tied to the operation of another stream that ended just
    before it. A wait that cost nothing when measured is kept where the order of launches names its
    two streams.
    """
    launches = _Launches.of(rank, links)
    others = _OtherStreams(rank, links)
    calls = rank.of(Category.RUNTIME, named=STREAM_WAIT_CALL)
    stated, known = _recorded_waits(rank, calls, launches)
    ordered, named = _launch_order_waits(rank, calls[~known], launches)
    late = np.flatnonzero(delay_us > LATE_START_US)
    # First after a call for a wait, of any thread: a call names no stream, so it may be for theirs.
    called_us = np.sort(rank.start_us[calls[~known]])
    by_stream = np.argsort(launches.stream, kind="stable")
    when_us = launches.when_us[by_stream]
    same = np.diff(launches.stream[by_stream], prepend=NONE) == 0
    since_us = np.where(same, np.roll(when_us, 1), -np.inf)
    until = np.searchsorted(called_us, when_us, side="right")
    is_first = np.zeros(len(delay_us), np.bool_)
    waited = until > np.searchsorted(called_us, since_us, side="right")
    is_first[launches.device[by_stream[waited]]] = True
    after_call = late[is_first[late]]
    target = np.concatenate([ordered, after_call])
    named = np.concatenate([named, np.full(len(after_call), NONE, np.int64)])
    near = np.full(len(target), NONE, np.int64)
    for at in np.flatnonzero(delay_us[target] > LATE_START_US).tolist():
        ended = others.ended_near(int(target[at]), ROUNDING_US)
        near[at] = ended[-1] if len(ended) else NONE
    source = np.concatenate([stated[0], np.where(near >= 0, near, named)])
    target = np.concatenate([stated[1], target])
    usable = (source >= 0) & (others.end[source] <= others.start[target] + ROUNDING_US)
    source, target = distinct_pairs(source[usable], target[usable])
    kind = np.where(is_collective[target], EdgeKind.EVENT_WAIT_COLLECTIVE, EdgeKind.EVENT_WAIT)
    return Edges.of(source, target, kind)


def occupancy_waits(rank: RankTrace, links: Links, delay_us: Floats) -> Edges:
    """Kernels that started only as a kernel of another stream left the SMs.

    A kernel of w waves places its last blocks when its last wave begins; the kernel that waits can
    start then. Its first waves take what they take in the median of its like (same name and
    grid): the last one is slower for the company.
    """
    others = _OtherStreams(rank, links)
    is_kernel = rank.category[links.device_rows] == Category.KERNEL
    waves = rank.waves[links.device_rows]
    fills = is_kernel & ((waves >= MIN_WAVES) | (waves == 0))
    edges: list[tuple[int, int]] = []
    needs_sm = rank.category[links.device_rows] != Category.MEMCPY
    for target in np.flatnonzero((delay_us > LATE_START_US) & needs_sm).tolist():
        near = others.ended_near(target, MAX_TAIL_US)
        ready = others.start[target] - delay_us[target]
        taken = others.end[near] - others.start[near]
        left = (others.end[near] - others.start[target]) / taken.clip(1)
        held = near[
            (others.start[near] <= ready + MAX_WAIT_GAP_US)
            & (others.end[near] > ready)
            & (left < MAX_TAIL_FRAC)
            & fills[near]
        ]
        if len(held):
            closest = held[np.argmin(np.abs(others.end[held] - others.start[target]))]
            edges.append((int(closest), target))
    table = np.array(edges, np.int64).reshape(-1, 2)
    source = links.device_rows[table[:, 0]]
    before_last_wave = 1 - 1 / waves[table[:, 0]].clip(MIN_WAVES)
    # Undisturbed, a kernel takes the median of those of its name and grid.
    rows = links.device_rows
    like = rank.name[rows].astype(np.int64) * (len(rank.strings) + 1) + rank.grid[rows]
    taken_us, typical_us = rank.duration_us[rows], np.zeros(len(rows))
    for own in alike(like):
        typical_us[own] = median(taken_us[own])
    undisturbed = np.minimum(typical_us / taken_us.clip(1e-3), 1)
    overlap = 1 - before_last_wave * undisturbed[table[:, 0]]
    overlap = np.where(rank.waves[source] >= MIN_WAVES, overlap.clip(0, MAX_TAIL_FRAC), 0.0)
    return Edges.of(table[:, 0], table[:, 1], EdgeKind.SM_OCCUPANCY, overlap_frac=overlap)


class _Launches(NamedTuple):
    """Device operations in the order of their launch calls."""

    device: Ints
    """Positions in `Links.device_rows`."""
    call: Ints
    """Row of the launch call."""
    when_us: Floats
    stream: Ints

    @classmethod
    def of(cls, rank: RankTrace, links: Links) -> _Launches:
        device = np.flatnonzero(links.device_launch >= 0)
        when_us = rank.start_us[links.device_launch[device]]
        order = np.argsort(when_us, kind="stable")
        device = device[order]
        stream = stream_keys(rank, links.device_rows)[device]
        return cls(device, links.device_launch[device], when_us[order], stream)


def _recorded_waits(
    rank: RankTrace, calls: Ints, launches: _Launches
) -> tuple[tuple[Ints, Ints], Mask]:
    """(source, target) device rows of the waits whose streams a `cuda_sync` event names, and which
    of the calls those are.

    The source is what was last launched on the awaited stream before its event was recorded, the
    target what was launched first on the waiting one after the call.
    """
    records = rank.of(Category.CUDA_SYNC)
    records = records[(rank.sync_source_stream[records] >= 0) & (rank.sync_stream[records] >= 0)]
    known = np.isin(rank.correlation[calls], rank.correlation[records])
    none = np.zeros(0, np.int64)
    if not known.any():
        return (none, none), known
    record_of = dict(zip(rank.correlation[records].tolist(), records.tolist(), strict=True))
    runtime = rank.of(Category.RUNTIME)
    call_of = dict(zip(rank.correlation[runtime].tolist(), runtime.tolist(), strict=True))
    number = launches.stream & 0xFFFFFFFF
    on = {int(number[rows[0]]): rows for rows in alike(number)}
    when_us = {stream: launches.when_us[rows] for stream, rows in on.items()}
    never = np.zeros(0)
    pairs: list[tuple[int, int]] = []
    for at in np.flatnonzero(known).tolist():
        record = record_of[int(rank.correlation[calls[at]])]
        recorded = call_of.get(int(rank.sync_record_correlation[record]))
        known[at] = recorded is not None
        if recorded is None:
            continue
        awaited, waiting = int(rank.sync_source_stream[record]), int(rank.sync_stream[record])
        last = int(np.searchsorted(when_us.get(awaited, never), rank.start_us[recorded])) - 1
        first = int(np.searchsorted(when_us.get(waiting, never), rank.start_us[calls[at]]))
        if last >= 0 and first < len(on.get(waiting, none)):
            source, target = on[awaited][last], on[waiting][first]
            pairs.append((int(launches.device[source]), int(launches.device[target])))
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return (table[:, 0], table[:, 1]), known


def _launch_order_waits(rank: RankTrace, calls: Ints, launches: _Launches) -> tuple[Ints, Ints]:
    """Device rows launched right after a stream-wait call, and per such call the source that the
    order of launches names.

    That is the last operation launched before the call by its thread, if on another stream; else
    the last of any thread on another stream; -1 without one.
    """
    on = launches.stream
    run = np.maximum.accumulate(np.where(np.diff(on, prepend=NONE) != 0, np.arange(len(on)), 0))
    targets, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for thread in distinct(rank.thread[calls]):
        on_thread = np.flatnonzero(rank.thread[launches.call] == thread)
        called_us = rank.start_us[calls[rank.thread[calls] == thread]]
        at = np.searchsorted(launches.when_us[on_thread], called_us, side="right")
        called_us, at = called_us[at < len(on_thread)], at[at < len(on_thread)]
        target, before = on_thread[at], on_thread[at - 1]
        last = np.searchsorted(launches.when_us, called_us, side="left") - 1
        other = np.where(on[last] != on[target], last, run[last] - 1)
        source = np.where((at > 0) & (on[before] != on[target]), before, other)
        targets.append(launches.device[target])
        sources.append(np.where(source >= 0, launches.device[source], NONE))
    return np.concatenate(targets), np.concatenate(sources)
