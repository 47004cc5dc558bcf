"""Operations of one stream follow one another: the edges that keep their order.

Streams are queues, so an operation starts when all before it have ended. Recorded times break that
in two ways: timestamps are off by a few microseconds, and the branches of a graph launch run at
the same time under one stream number. Both keep their order here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.graph.threads import ROUNDING_US
from perfmodel.trace.columns import Floats, Ints, RankTrace
from perfmodel.trace.link import Links, runs, stream_keys

MOST_AT_ONCE = 16
"""Branches of one graph launch that are told apart; of more, those that end last."""


class StreamEdges(NamedTuple):
    """Order within streams: positions in `Links.device_rows`, and the share of the source that is
    left when the target starts (0 where they follow one another)."""

    source: Ints
    target: Ints
    overlap_frac: Floats


def stream_edges(rank: RankTrace, links: Links) -> StreamEdges:
    """Every operation behind all those before it on its stream that nothing else is behind.

    One edge each, where operations follow one another (within `ROUNDING_US`).
    """
    rows = links.device_rows
    order = np.lexsort((rank.end_us[rows], rank.start_us[rows], stream_keys(rank, rows)))
    start_us, end_us = rank.start_us[rows[order]], rank.end_us[rows[order]]
    parts: list[tuple[Ints, Ints]] = []
    for low, high in runs(stream_keys(rank, rows[order])):
        source, target = _in_order(start_us[low:high], end_us[low:high])
        parts.append((source + low, target + low))
    if not parts:
        return StreamEdges(rows[:0], rows[:0], np.zeros(0))
    source, target = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    overlap_us = end_us[source] - start_us[target]
    taken_us = end_us[source] - start_us[source]
    overlaps = (overlap_us > ROUNDING_US) & (taken_us > 0)
    share = np.where(overlaps, overlap_us / np.where(overlaps, taken_us, 1.0), 0.0)
    return StreamEdges(order[source], order[target], share.clip(0.0, 1.0))


def _in_order(start_us: Floats, end_us: Floats) -> tuple[Ints, Ints]:
    """Edges among the operations of one stream, in order of their starts."""
    latest = np.maximum.accumulate(end_us)
    at = np.arange(1, len(start_us))
    free = start_us[1:] >= latest[:-1] - ROUNDING_US
    begins = np.concatenate([[True], free])
    first = np.flatnonzero(begins)
    size = np.diff(np.append(first, len(start_us)))
    alone = size[np.cumsum(begins) - 1] == 1
    plain = at[free & alone[:-1]] - 1
    source, target = plain.tolist(), (plain + 1).tolist()
    for begin, count in zip(first[size > 1].tolist(), size[size > 1].tolist(), strict=True):
        _of_group(start_us, end_us, begin, count, source, target)
    return np.array(source, np.int64), np.array(target, np.int64)


def _of_group(
    start_us: Floats, end_us: Floats, begin: int, count: int, source: list[int], target: list[int]
) -> None:
    """Edges among `count` operations that overlap in turn, and from them to the one behind."""
    running = [begin]
    past = begin + count
    for at in range(begin + 1, min(past + 1, len(start_us))):
        source += running
        target += [at] * len(running)
        over = at == past
        running = [r for r in running if not over and end_us[r] - start_us[at] > ROUNDING_US]
        running.append(at)
        if len(running) > MOST_AT_ONCE:
            running.remove(min(running, key=lambda r: end_us[r]))
